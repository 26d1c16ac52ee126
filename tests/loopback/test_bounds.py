"""What grows with what others do: receipts of short episodes, members, books, the broker's file, weights that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from p2prl.core import messages as m
from p2prl.net.keys import KeyPair, new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network, Socket
from p2prl.nodes import broker_file
from p2prl.nodes.broker import Broker
from p2prl.nodes.prepare import prepare
from p2prl.nodes.wiring import BrokerConfig, Staff
from p2prl.settings import find_experiment, with_agent
from p2prl.wire import frames
from tests import kit
from tests.conftest import wait_until

IDLE = ("--agent", str(kit.SAMPLES / "idle.py:Idle"))


def test_episodes_of_one_step_in_many_slots_are_all_counted(tmp_path: Path) -> None:
    base = kit.free_base()
    # A bundle has 65,536 ticks and some 20,000 episodes, which take more than one message on control may have.
    flags = ("--set", "env.args.length=2", "--set", "agent.ticks=128", "--players", "1", "--envs", "512")
    with kit.host(tmp_path, "--env", "chain", *IDLE, *flags, name=f"b{base}", port=base) as host:
        host.wait_for("started")
        last = host.wait_for("progress", lambda e: e["episodes"] > 50_000, timeout=60.0)
        assert last["return_mean"] == 1.0
        with kit.Peer(base) as peer:
            wait_until(lambda: peer.status().nodes[0].bundles.stored > 0, what="the player's receipts came")
            status = peer.status()
            assert status.refused_frames == {}
            assert status.bundles.duplicate == 0
            assert sum(shard.duplicate for shard in status.shards) == 0
            assert status.episodes > 15_000 * status.bundles.stored
        assert host.end() == 0


def test_a_shard_that_was_only_silent_did_not_start_again(tmp_path: Path) -> None:
    base = kit.free_base()
    with kit.host(tmp_path, "--env", "chain", *IDLE, "--players", "0", name=f"p{base}", port=base) as host:
        host.wait_for("started")
        with kit.Peer(base) as peer:
            wait_until(lambda: all(shard.state == "working" for shard in peer.status().shards))
            shard = host.children("shard")[0]
            shard.suspend()
            try:
                host.wait_for_line(r"shard \d is silent")
            finally:
                shard.resume()
            wait_until(lambda: all(shard.state == "working" for shard in peer.status().shards))
            assert [shard.starts for shard in peer.status().shards] == [1, 1]


def test_weights_go_on_after_the_broker_took_none_for_a_while(tmp_path: Path) -> None:
    base = kit.free_base()
    settings = ("agent.min_ticks=200", "replay.samples_per_insert=4.0", "train.publish_interval_s=0.02")
    flags = [word for setting in settings for word in ("--set", setting)]
    with kit.host(
        tmp_path, "--env", "chain", *IDLE, *flags, "--players", "1", "--envs", "4", name=f"w{base}", port=base
    ) as host:
        before = host.wait_for("progress", lambda e: e["weights_version"] > 5)
        [broker], [trainer] = host.children("broker"), host.children("trainer")
        broker.suspend()
        try:
            # Longer than the socket has room for, by the trainer's own work: it must not wait for the broker.
            begun = sum(trainer.cpu_times()[:2])
            wait_until(lambda: sum(trainer.cpu_times()[:2]) > begun + 0.2, 20.0, "the trainer goes on")
        finally:
            broker.resume()
        with kit.Peer(base) as peer:
            version = before["weights_version"]

            def up_to_date() -> bool:
                [node] = peer.status().nodes
                return bool(node.weights_version > version + 5)

            wait_until(up_to_date, 20.0, "the player has weights of after the pause")
            assert [shard.starts for shard in peer.status().shards] == [1, 1]
        versions = [event["weights_version"] for event in host.of("progress")]
        assert versions == sorted(versions)
        assert host.end() == 0


# --- a broker alone, in this process


@contextmanager
def broker_of(folder: Path, max_members: int, ladder: int = 1, shard: KeyPair | None = None) -> Iterator[int]:
    """A real broker on loopback; gives its base port. `shard` is the key of the run's shards."""
    base, ready, loops = kit.free_base(0), threading.Event(), []
    experiment = with_agent(find_experiment("chain"), IDLE[1])
    prepared = prepare(experiment, folder / "results", False)
    config = BrokerConfig(
        run=msgspec.structs.replace(prepared.run, ladder=ladder),
        run_name="run",
        host_name="alone",
        keys=new_key_pair(),
        staff=Staff(
            owner=new_key_pair().public,
            trainer=new_key_pair().public,
            shard=(shard or new_key_pair()).public,
            member=new_key_pair().public,
        ),
        base_port=base,
        bind=["127.0.0.1"],
        shards=0,
        folder=str(prepared.folder),
        state=str(folder / "state"),
        open=True,
        max_members=max_members,
    )

    def work() -> None:
        loops.append(Loop())
        broker = Broker(config, loops[0])
        ready.set()
        try:
            loops[0].run()
        finally:
            broker.network.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(10.0)
        yield base
    finally:
        loops[0].stop()
        thread.join(10.0)


def _hello(name: str, boot_id: str = "b") -> m.Hello:
    return m.Hello(
        protocol=m.PROTOCOL, version="0", role="member", name=name, boot_id=boot_id, players=1, slots=1
    )


def test_one_member_too_many_is_told_so_and_gets_the_place_of_one_that_left(tmp_path: Path) -> None:
    with broker_of(tmp_path, max_members=1) as base, kit.Peer(base) as first, kit.Peer(base) as second:
        seats = first.ask(_hello("first"), m.Welcome).seats
        refusal = second.ask(_hello("second"), m.Refusal)
        assert refusal.reason == "full"
        assert "1 members" in refusal.text
        status = second.status()
        assert status.refused_frames == {"full": 1}
        assert [node.name for node in status.nodes] == ["first"]
        # Who is in may introduce itself again.
        assert first.ask(_hello("first"), m.Welcome).seats == seats
        first.say(m.Goodbye(reason="done"))
        wait_until(lambda: second.status().nodes == [], what="a node that gave nothing is forgotten at once")
        assert [seat.rank for seat in second.ask(_hello("second"), m.Welcome).seats] == [0]


def test_a_node_that_gave_something_keeps_its_row(tmp_path: Path) -> None:
    with broker_of(tmp_path, max_members=5) as base, kit.Peer(base) as giver, kit.Peer(base) as peer:
        giver.ask(_hello("giver"), m.Welcome)
        books = m.Books(produced=3, stored=2, pending=1)
        giver.ask(m.Heartbeat(boot_id="b", state="working", steps=9, books=books), m.HeartbeatAck)
        giver.say(m.Goodbye(reason="done"))
        wait_until(lambda: [node.state for node in peer.status().nodes] == ["gone"])
        total = peer.status().bundles
        assert (total.produced, total.stored, total.pending) == (3, 2, 0)
        assert total.dropped_reasons == {"member left": 1}


def test_episodes_that_a_shard_counted_and_does_not_list_count(tmp_path: Path) -> None:
    """It lists the last hundreds: the run's means need no more."""
    shard = new_key_pair()
    with (
        broker_of(tmp_path, max_members=5, shard=shard) as base,
        kit.Peer(base) as node,
        kit.Peer(base, keys=shard) as peer,
    ):
        node.ask(_hello("node"), m.Welcome)
        listed = [(2.0, 3, 0.5)] * 100 + [(1.0, 3, 0.0)] * 100
        verdicts = [m.Verdict(seq=1, status="stored")]
        for ended in (250, 10_000):
            peer.say(
                m.ShardReceipts(
                    shard=0,
                    node=node.keys.public,
                    boot_id="b",
                    verdicts=verdicts,
                    episodes=listed,
                    ended=ended,
                )
            )
            node.hear()
        status = node.status()
        assert status.episodes == 10_250
        assert (status.return_mean, status.nodes[0].return_mean) == (1.0, 1.0)


def test_hellos_do_not_each_write_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = broker_file.save

    def save(folder: Path, saved: broker_file.Saved, durable: bool) -> None:
        written.append(saved.next_seed)
        write(folder, saved, durable)

    monkeypatch.setattr(broker_file, "save", save)
    with broker_of(tmp_path, max_members=5) as base, kit.Peer(base) as peer:
        begun = time.monotonic()
        given = [peer.ask(_hello("again", str(boot)), m.Welcome).seats[0].seed for boot in range(500)]
        took_s = time.monotonic() - begun
        assert len(written) < 20 + 15 * took_s
        assert len(set(given)) == 500
        assert max(given) < written[-1], "a killed broker's successor would give a seed again"


def test_who_is_put_out_costs_the_others_one_cut_of_each_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[str] = []
    reopen = Network.reopen

    def noted(network: Network, socket: Socket) -> None:
        cut.append(socket.kind)
        reopen(network, socket)

    monkeypatch.setattr(Network, "reopen", noted)
    with broker_of(tmp_path, max_members=5) as base, kit.Peer(base) as peer, kit.Peer(base, 2, "sub") as odd:
        for topic in range(100):
            odd.socket.raw.subscribe(b"topic %d" % topic)
        wait_until(lambda: "router" in cut, 10, "it had time to hear why")
        assert peer.status().refused_frames["malformed"] >= 1
        assert cut == ["xpub", "router"]


def test_new_seats_come_again_until_the_member_sits_in_them(tmp_path: Path) -> None:
    with (
        broker_of(tmp_path, max_members=5, ladder=4) as base,
        kit.Peer(base) as first,
        kit.Peer(base) as second,
    ):
        first.ask(_hello("first"), m.Welcome)
        [old] = second.ask(_hello("second"), m.Welcome).seats
        assert old.rank == 1
        first.say(m.Goodbye(reason="done"))
        [seat] = _welcomed(second)
        assert seat.rank == 0
        assert seat.seed not in (0, old.seed)
        second.say(_beat(1))
        assert _welcomed(second) == [seat], "it does not sit there yet: it may not have heard"
        for _ in range(3):
            second.ask(_beat(0), m.HeartbeatAck)
        assert second.hear(0.0) is None


def test_who_comes_over_a_new_connection_is_told_the_shards(tmp_path: Path) -> None:
    """The list is sent when it changes: one that went with the connection would not come again."""
    with broker_of(tmp_path, max_members=5) as base, kit.Peer(base) as before:
        before.ask(_hello("pc"), m.Welcome)
        with kit.Peer(base, keys=before.keys) as after:
            after.say(_beat(0))
            assert _answers(after) == [m.HeartbeatAck, m.ShardList]
            after.say(_beat(0))
            assert _answers(after) == [m.HeartbeatAck]


def _answers(peer: kit.Peer) -> list[type[m.Message]]:
    """What this peer was told up to now."""
    peer.say(m.StatusAsk())
    kinds: list[type[m.Message]] = []
    while m.StatusReply not in kinds:
        received = peer.hear()
        assert received is not None, f"nothing comes after {kinds}"
        kinds.append(type(frames.decode_from_broker(received.frames[0])))
    return kinds[:-1]


def _beat(rank: int) -> m.Heartbeat:
    return m.Heartbeat(boot_id="b", state="working", players=[m.PlayerReport(rank=rank, state="working")])


def _welcomed(peer: kit.Peer) -> list[m.Seat]:
    """The seats of the next Welcome that comes unasked."""
    while (received := peer.hear()) is not None:
        message = frames.decode_from_broker(received.frames[0])
        if isinstance(message, m.Welcome):
            return message.seats
    raise AssertionError("no Welcome came")
