"""What the broker, the shards and the recorder keep or send of what others do: cut, folded, bounded."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from p2prl.core import messages as m
from p2prl.core.bounds import MAX_COUNT
from p2prl.core.ledger import MAX_REMEMBERED, Ledger
from p2prl.core.membership import Roster
from p2prl.errors import LocalProtocolError
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.member_desk import MemberDesk
from p2prl.nodes.recorder import Recorder
from p2prl.nodes.shard_desk import ShardDesk
from p2prl.nodes.slot import WAITS, Slot
from p2prl.nodes.status import bounded_status
from p2prl.nodes.wiring import MAX_MEMBERS
from p2prl.wire import frames

KEY = "k" * 40


def test_what_the_broker_would_not_take_is_not_sent() -> None:
    fault = m.Fault(kind="warning", text="x" * frames.MAX_TO_BROKER_BYTES)
    with pytest.raises(LocalProtocolError, match="Fault"):
        frames.encode_to_broker(fault)


def _address(boot_id: str) -> m.ShardAddress:
    return m.ShardAddress(index=0, push_port=1, sample_port=2, boot_id=boot_id)


def test_a_shard_that_was_silent_did_not_start_again() -> None:
    desk = ShardDesk({})
    desk.greeted(_address("b1"), b"r", 0.0)
    assert desk.ticked(10.0) == [0]
    desk.greeted(_address("b1"), b"r", 11.0)
    assert desk.row(0, 11.0).starts == 1
    desk.greeted(_address("b2"), b"r", 12.0)
    assert desk.row(0, 12.0).starts == 2


def _node(index: int, state: str) -> m.NodeStatus:
    """As large as a stranger can make it."""
    wide = "\U0001f600"
    reasons = {f"{index}-{reason}".ljust(64, wide): MAX_COUNT for reason in range(32)}
    return m.NodeStatus(
        name=wide * 64,
        key=f"{index:040}",
        address="2001:0db8:0000:0000:0000:0000:0000:0001",
        players=256,
        state=state,
        reason=wide * 300,
        steps=2**60,
        steps_per_s=1e300,
        episodes=2**60,
        return_mean=1e300,
        weights_version=2**40,
        lag=2**40,
        seen_s_ago=1e6,
        version=wide * 64,
        system=wide * 300,
        bundles=m.Books(
            produced=2**60,
            stored=2**60,
            pending=2**60,
            duplicate=2**60,
            refused_reasons=reasons,
            dropped_reasons=reasons,
        ),
        refused_by_host=dict.fromkeys(m.REFUSALS, 2**40),
        player_reports=[m.PlayerReport(rank=rank, state="x", reason=wide * 300) for rank in range(3)],
        faults=[wide * 300] * 5,
    )


def _status(nodes: list[m.NodeStatus]) -> m.StatusReply:
    return m.StatusReply(
        run_id="r", run_name="r", host_name="h", version="0", term=1, env="e", agent="a", uptime_s=1.0, steps=0,
        steps_per_s=0.0, episodes=0, return_mean=None, return_episodes=0, return_mean_all=None, updates=0,
        weights_version=0, lag_mean=0.0, bundles=m.Books(), nodes=nodes, shards=[], trainer_state="training",
    )  # fmt: skip


def test_a_status_of_all_nodes_fits_whatever_they_say() -> None:
    nodes = [_node(index, "working") for index in range(MAX_MEMBERS)]
    nodes += [_node(MAX_MEMBERS + index, "gone") for index in range(MAX_REMEMBERED + 1)]
    short = bounded_status(_status(nodes), frames.MAX_FROM_BROKER_BYTES)
    raw = frames.encode(short)
    assert len(raw) <= frames.MAX_FROM_BROKER_BYTES
    assert [node.key for node in short.nodes] == [node.key for node in nodes]
    assert frames.decode_from_broker(raw) == short


def test_a_status_that_fits_is_left_alone_and_else_loses_the_least() -> None:
    status = _status([_node(0, "working")])
    size = len(frames.encode(status))
    assert bounded_status(status, size) is status
    [node] = bounded_status(status, size - 1).nodes
    assert (node.player_reports, node.faults) == ([], [])
    assert node.bundles == status.nodes[0].bundles


def _desk(saved: Saved | None = None, limit: int = 1000) -> MemberDesk:
    return MemberDesk(Roster(), saved or Saved(), limit)


def _join(desk: MemberDesk, key: str, now: float = 0.0) -> None:
    hello = m.Hello(protocol=m.PROTOCOL, version="0", role="member", name=key, boot_id="b", players=1)
    desk.hello(key, hello, 1, b"route", "192.0.2.1", now)


def _give(desk: MemberDesk, key: str, now: float = 0.0) -> None:
    beat = m.Heartbeat(boot_id="b", state="working", steps=5, books=m.Books(produced=2, stored=2))
    assert desk.heartbeat(key, beat, b"route", "192.0.2.1", 0, now) is not None


def _places(desk: MemberDesk) -> list[set[str]]:
    kept = (desk.peers, desk.roster.members, desk.saved.ledgers, desk.saved.names, desk.refused)
    return [set(place) for place in kept]


def test_a_crowd_that_comes_and_goes_leaves_nothing() -> None:
    desk = _desk()
    for index in range(3000):
        _join(desk, f"k{index}")
        desk.refuse(f"k{index}", "malformed")
        if index % 2:
            desk.goodbye(f"k{index}", m.Goodbye(reason="bye"), b"route", 1.0)
    desk.ticked(100.0)
    assert _places(desk) == [set()] * 5


def test_givers_are_remembered_then_folded() -> None:
    desk = _desk()
    for index in range(MAX_REMEMBERED + 5):
        _join(desk, f"k{index}")
        _give(desk, f"k{index}")
        if index != 1:
            desk.goodbye(f"k{index}", m.Goodbye(reason="bye"), b"route", 1.0)
    desk.fold(settled=False)
    folded = {"k0", "k2", "k3", "k4"}
    assert desk.saved.others_count == 4
    assert desk.saved.others.total().stored == 8
    for place in _places(desk)[:4]:
        assert len(place) == MAX_REMEMBERED + 1
        assert not place & folded
        assert "k1" in place, "it is still here"
    saved = msgspec.json.decode(msgspec.json.encode(desk.saved), type=Saved)
    assert saved.others.total() == desk.saved.others.total()


def test_what_went_wrong_with_a_node_that_gave_nothing_can_still_be_read() -> None:
    desk = _desk()
    for index in range(MAX_REMEMBERED + 2):
        _join(desk, f"k{index}")
        desk.fault(f"k{index}", m.Fault(kind="missing_package", text="pip install x"))
        desk.goodbye(f"k{index}", m.Goodbye(reason="bye"), b"route", 1.0)
    assert desk.peers["k0"].faults == ["missing package: pip install x"]
    desk.fold(settled=True)
    assert all(len(place) == MAX_REMEMBERED for place in _places(desk)[:4])
    assert set(desk.peers) == {f"k{index}" for index in range(2, MAX_REMEMBERED + 2)}


def test_nodes_of_before_a_restart_have_time_to_come_back() -> None:
    ledgers = {
        f"k{index}": Ledger(closed=m.Books(produced=1, stored=1)) for index in range(MAX_REMEMBERED + 2)
    }
    desk = _desk(Saved(ledgers=ledgers))
    desk.fold(settled=False)
    assert desk.saved.others_count == 0
    desk.fold(settled=True)
    assert desk.saved.others_count == 2


def test_bundles_of_an_unknown_key_make_no_ledger() -> None:
    desk = _desk()
    verdicts = [m.Verdict(seq=0, status="stored")]
    assert (
        desk.receipts(m.ShardReceipts(shard=0, node="stranger", boot_id="b", verdicts=verdicts), 0.0) is None
    )
    assert _places(desk) == [set()] * 5


def test_a_new_broker_forgets_who_gave_nothing_before() -> None:
    giver = Ledger()
    giver.booted("b")
    giver.reported("b", m.Books(produced=1, stored=1), 1, 0)
    saved = Saved(ledgers={"idle": Ledger(boot_id="b"), "giver": giver}, names={"idle": "i", "giver": "g"})
    desk = _desk(saved)
    assert set(desk.saved.ledgers) == set(desk.saved.names) == {"giver"}


def test_a_full_host_still_takes_those_it_has() -> None:
    desk = _desk(limit=2)
    _join(desk, "a")
    assert not desk.full("b")
    _join(desk, "b")
    assert desk.full("c")
    assert not desk.full("a")
    desk.goodbye("a", m.Goodbye(reason="bye"), b"route", 1.0)
    assert not desk.full("c")


def test_a_gone_nodes_line_is_written_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    here = msgspec.structs.replace(_node(0, "working"), name="here")
    gone = msgspec.structs.replace(_node(1, "gone"), name="gone")
    for second in range(0, 50, 10):
        seen = msgspec.structs.replace(gone, seen_s_ago=float(second))
        recorder.status(_status([here, seen]), float(second))
    changed = msgspec.structs.replace(gone, steps=7)
    recorder.status(_status([here, changed]), 60.0)
    recorder.close(_status([here, changed]))
    rows = [json.loads(line) for line in (tmp_path / "nodes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["name"] for row in rows].count("here") == 7
    assert [row["steps"] for row in rows if row["name"] == "gone"] == [2**60, 7]


def test_each_evaluation_is_one_point_at_the_steps_of_its_weights(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    values = {"episodes": 20, "return_low": 1.0, "return_high": 3.0, "length_mean": 9.0}
    first, second = (
        m.Evaluation(version=version, return_mean=2.0, steps=steps, **values)  # type: ignore[arg-type]
        for version, steps in ((3, 100), (9, 400))
    )
    status = msgspec.structs.replace(_status([]), steps=500)
    for second_at, evaluation in enumerate((None, first, first, second, second)):
        recorder.status(msgspec.structs.replace(status, evaluation=evaluation), 2.0 * second_at)
    recorder.close(msgspec.structs.replace(status, evaluation=second))
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    for tag, value in (("return_mean", 2.0), ("return_low", 1.0), ("return_high", 3.0), ("length_mean", 9.0)):
        points = [(point.step, point.value) for point in board.Scalars(f"eval/{tag}")]
        assert points == [(100, value), (400, value)]
    rows = [
        json.loads(line) for line in (tmp_path / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["eval_version"] for row in rows] == [None, 3, 3, 9, 9, 9]
    assert (rows[-1]["eval_return_mean"], rows[-1]["eval_episodes"]) == (2.0, 20)


def test_steps_of_a_bundle_under_way_are_progress() -> None:
    roster = Roster(stall_after_s=10)
    desk = MemberDesk(roster, Saved(), 10)
    hello = m.Hello(protocol=m.PROTOCOL, version="0", role="member", name="pc", boot_id="b", players=1)
    member = desk.hello(KEY, hello, 1, b"r", "a", 0.0)
    for second in range(1, 60):
        report = m.PlayerReport(rank=0, state="working", steps=second, under_way=second)
        beat = m.Heartbeat(boot_id="b", state="working", players=[report])
        desk.heartbeat(KEY, beat, b"r", "a", 0, float(second))
        desk.ticked(float(second))
        assert member.state == "working"
    assert desk.saved.ledgers[KEY].total_steps == 0, "they are in no books yet"
    desk.ticked(59.0 + roster.stall_after_s - 1.0)
    assert member.state == "working"
    desk.ticked(59.0 + roster.stall_after_s)
    assert member.state == "stalled"


def test_a_member_that_loads_for_the_first_time_is_not_stalled_for_two_minutes() -> None:
    desk = MemberDesk(Roster(stall_after_s=10), Saved(), 10)
    hello = m.Hello(protocol=m.PROTOCOL, version="0", role="member", name="pc", boot_id="b", players=1)
    member = desk.hello(KEY, hello, 1, b"r", "a", 0.0)

    def beat(second: float, reason: str, loading_s: float) -> None:
        report = m.PlayerReport(rank=0, state="starting", reason=reason, loading_s=loading_s)
        said = m.Heartbeat(boot_id="b", state="starting", reason=reason, players=[report])
        desk.heartbeat(KEY, said, b"r", "a", 0, second)
        desk.ticked(second)

    for second in range(1, 100):
        beat(second, "loading", float(second))
        assert (member.state, member.reason) == ("starting", "loading")
    for second in range(100, 110):  # it has loaded, and there are no weights
        beat(second, "waiting for the first weights", 0.0)
        assert member.state == "starting"
    beat(110.0, "waiting for the first weights", 0.0)
    assert member.state == "stalled"


def test_a_load_that_never_ends_is_told() -> None:
    roster = Roster(stall_after_s=10)
    member = roster.hello("k", "pc", "b", 1, [], 0.0)
    for second in range(1, 121):
        roster.heartbeat("k", "b", 0, "", float(second), loading=True)
        roster.ticked(float(second))
        assert member.state == ("stalled" if second == 120 else "starting")


def test_a_seats_first_player_tells_how_long_it_loads() -> None:
    slot = Slot(m.Seat(rank=0, seed=1), starts=1, started_at=3.0)
    assert slot.report(63.0).loading_s == 60.0
    slot.ready, slot.reason = True, WAITS
    assert slot.report(64.0).loading_s == 0.0
    again = Slot(m.Seat(rank=0, seed=1), starts=2, started_at=3.0)
    assert again.report(63.0).loading_s == 0.0, "it may end each time"


def test_a_member_in_its_first_step_says_so_and_is_not_stalled() -> None:
    desk = MemberDesk(Roster(stall_after_s=10), Saved(), 10)
    hello = m.Hello(protocol=m.PROTOCOL, version="0", role="member", name="pc", boot_id="b", players=1)
    member = desk.hello(KEY, hello, 1, b"r", "a", 0.0)

    def beat(second: float, reason: str, first_step_s: float) -> None:
        report = m.PlayerReport(rank=0, state="starting", reason=reason, first_step_s=first_step_s)
        said = m.Heartbeat(boot_id="b", state="starting", reason=reason, players=[report])
        desk.heartbeat(KEY, said, b"r", "a", 0, second)

    beat(1.0, "waiting for the first weights", 0.0)
    beat(5.0, "", 0.5)
    assert (member.state, member.reason) == ("starting", "")
    beat(30.0, "in its first step for 25 s", 25.5)
    assert not desk.ticked(30.0)
    assert (member.state, member.reason) == ("starting", "in its first step for 25 s")
