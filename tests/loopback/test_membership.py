"""Joining, being seen, coming back: G1 of the cases, those of one host and its nodes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from p2prl.core import messages as m
from p2prl.net.keys import KeyPair, load_or_create
from p2prl.replay.log import SegmentLog
from p2prl.replay.records import BUNDLE, decode_bundle_record
from p2prl.wire import frames
from tests import kit
from tests.conftest import wait_until

IDLE = ("--agent", str(kit.SAMPLES / "idle.py:Idle"))


class Lan:
    """One host that trains a little with its own player, for all tests of this file."""

    def __init__(self, folder: Path, base: int, host: kit.Program) -> None:
        self.folder, self.base, self.host = folder, base, host
        self.results = Path(host.wait_for("started")["results"])
        self.target = f"127.0.0.1:{base}"

    def join(self, name: str, target: str | None = None) -> kit.Program:
        """A joiner with one player; the same name is the same node."""
        return kit.join(self.folder, "--envs", "2", name=name, agent=kit.IDLE, target=target or self.target)

    def key(self, name: str) -> KeyPair:
        """The joiner's own key pair."""
        return load_or_create(self.folder / f"home-{name}" / "node.key")

    def peer(self, offset: int = 0, **more: object) -> kit.Peer:
        """A hand-made peer."""
        return kit.Peer(self.base, offset, **more)  # type: ignore[arg-type]


def row(peer: kit.Peer, name: str) -> m.NodeStatus | None:
    """The node's one row; None if there is none."""
    rows = [node for node in peer.status().nodes if node.name == name]
    assert len(rows) <= 1
    return rows[0] if rows else None


def working(peer: kit.Peer, name: str, timeout: float = 30.0) -> m.NodeStatus:
    """Wait until it works at some speed."""

    def look() -> m.NodeStatus | None:
        found = row(peer, name)
        return found if found and found.state == "working" and found.steps_per_s > 0 else None

    found = wait_until(look, timeout, f"{name} works")
    assert isinstance(found, m.NodeStatus)
    return found


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    folder, base = tmp_path_factory.mktemp("lan"), kit.free_base()
    settings = ("agent.min_ticks=200", "replay.samples_per_insert=0.05", "train.publish_interval_s=0.025")
    flags = [word for setting in settings for word in ("--set", setting)]
    with kit.host(
        folder, "--env", "chain", *IDLE, *flags, "--players", "1", "--envs", "2", name=f"m{base}", port=base
    ) as host:
        yield Lan(folder, base, host)


def test_1_every_node_shows_its_speed_or_why_it_has_none(lan: Lan) -> None:
    with lan.join("one") as joiner, lan.peer() as peer, lan.peer() as mute, lan.peer() as paused:
        joiner.wait_for("joined")
        hello = m.Hello(protocol=m.PROTOCOL, version="0", role="member", name="mute", boot_id="b", players=1)
        mute.ask(hello, m.Welcome)
        paused.ask(m.Hello(**{**_fields(hello), "name": "paused"}), m.Welcome)
        paused.say(m.Heartbeat(boot_id="b", state="paused", reason="on battery"))
        working(peer, "one")
        working(peer, f"m{lan.base}")
        shown = kit.status(lan.folder, lan.target)
        rows = {node["name"]: node for node in shown["nodes"]}
        assert all(node["steps_per_s"] > 0 or node["reason"] for node in shown["nodes"])
        assert rows["paused"]["state"] == "paused"
        assert rows["paused"]["reason"] == "on battery"
        assert rows["mute"]["state"] == "starting"
        for late in (mute, paused):
            late.say(m.Goodbye(reason="done"))


def _fields(message: m.Hello) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def test_6_a_late_joiner_plays_with_current_weights_and_others_get_nothing_twice(lan: Lan) -> None:
    with lan.peer() as peer, lan.peer(2, kind="sub") as listener:
        assert listener.hear() is not None
        before = peer.status().weights_version
        with lan.join("late") as joiner:
            node = working(peer, "late")
            assert joiner.end() == 0
        heard = []
        while (received := listener.hear(0.5 if len(heard) < 50 else 0.0)) is not None and len(
            heard
        ) < 10_000:
            heard.append(frames.decode_weights_header(received.frames[0]).version)
        assert len(heard) == len(set(heard)) > 0
        assert heard == sorted(heard)
        versions = versions_played(lan.results, node.key)
        assert versions[0] >= before > 0


def versions_played(results: Path, node: str) -> list[int]:
    """The weights versions of a node's bundles in the shards' logs, as each shard got them; the oldest first."""
    found = []
    for folder in sorted((results / "replay").glob("shard-*")):
        for path in sorted(folder.iterdir()):
            assert path.is_file()
        log = SegmentLog(folder, 64_000_000, lambda: b"")
        for kind, body in log.records():
            bundle = decode_bundle_record(body) if kind == BUNDLE else None
            if bundle is not None and bundle.node == node:
                found.append(frames.decode_bundle_header(bundle.header).version)
    return sorted(found)


def test_7_8_a_killed_joiner_comes_back_as_the_same_row(lan: Lan) -> None:
    with lan.peer() as peer:
        with lan.join("phoenix") as joiner:
            first = working(peer, "phoenix")
            players = joiner.children()
            joiner.kill()
            psutil.wait_procs(players, 5.0)
            assert not [player for player in players if player.is_running()]
        # By another name of the same host: still the same node.
        with lan.join("phoenix", f"localhost:{lan.base}") as joiner:

            def back() -> m.NodeStatus | None:
                node = row(peer, "phoenix")
                return node if node and node.state == "working" and node.steps > first.steps else None

            again = wait_until(back, 30.0, "the joiner works again")
            assert isinstance(again, m.NodeStatus)
            assert again.key == first.key
            assert again.bundles.balanced()
            assert joiner.end() == 0


def test_10_a_members_key_cannot_write_weights_or_stop_the_run(lan: Lan) -> None:
    with lan.join("player"), lan.peer() as peer:
        node = working(peer, "player")
        keys = lan.key("player")
        before = peer.status()
        with lan.peer(keys=keys) as liar, lan.peer(11, keys=keys) as sampler:
            lies: list[list[m.Message | bytes]] = [
                [m.StopAsk(reason="signal")],
                [m.Rename(name="mine")],
                [m.ShardReceipts(shard=0, node=node.key, boot_id="x", verdicts=[], steps_total=10**9)],
                [m.ShardReport(**dict.fromkeys(_REPORT, 10**9), index=0, boot_id="x")],
                [m.TrainerReport(state="training", reason="lies", updates=10**9)],
                [_hello("trainer")],
                [_hello("shard")],
            ]
            for lie in lies:
                liar.say(*lie)
            sampler.say(m.SampleAsk(ask=1, count=10))
            wait_until(
                lambda: (
                    (found := row(peer, "player"))
                    and found.refused_by_host.get("not_permitted") == len(lies) + 1
                )
            )
            after = peer.status()
            assert sampler.hear(0.0) is None
        assert after.refused_frames["not_permitted"] == len(lies)
        assert after.shards[0].refused_reasons == {"not_permitted": 1}
        assert after.host_name == before.host_name
        assert after.trainer_reason != "lies"
        assert after.steps < 10**9
        assert after.updates < 10**9
        assert after.stopping == ""
        found = wait_until(lambda: (now := row(peer, "player")) and now.steps > node.steps)
        assert found


_REPORT = ("sessions", "ticks", "size_bytes", "inserted_ticks", "steps_total", "stored", "duplicate")


def _hello(role: m.Role) -> m.Hello:
    shard = m.ShardAddress(index=0, push_port=1, sample_port=2, boot_id="x")
    return m.Hello(protocol=m.PROTOCOL, version="0", role=role, name="liar", boot_id="x", shard=shard)


def test_12_a_node_that_gets_no_weights_any_more_is_named(lan: Lan) -> None:
    with lan.join("fresh"), lan.peer() as peer, lan.peer() as behind:
        working(peer, "fresh")
        hello = m.Hello(
            protocol=m.PROTOCOL, version="0", role="member", name="behind", boot_id="b", players=1
        )
        stuck = behind.ask(hello, m.Welcome).weights_version
        lags: list[int] = []

        def named() -> bool:
            beat = m.Heartbeat(boot_id="b", state="working", steps=len(lags) + 1, weights_version=stuck)
            behind.say(beat)
            node = row(peer, "behind")
            assert node is not None
            lags.append(node.lag)
            return any("behind" in line and "weights" in line for line in peer.status().warnings)

        wait_until(named, 30.0, "the lagging node is named")
        assert lags == sorted(lags)
        assert not any("fresh" in line for line in peer.status().warnings)
        shown = kit.status(lan.folder, lan.target)
        [seen] = [node for node in shown["nodes"] if node["name"] == "behind"]
        assert seen["lag"] >= lags[-1] > 0
        assert seen["weights_version"] == stuck
        behind.say(m.Goodbye(reason="done"))


def test_11_an_environment_that_ignores_its_seed_is_named(tmp_path: Path) -> None:
    base = kit.free_base()
    flags = ("--env", "tests.samples:Unseeded-v0", *IDLE, "--players", "1")
    with kit.host(tmp_path, *flags, name=f"u{base}", port=base, cwd=kit.ROOT) as host:
        assert "Unseeded-v0" in host.wait_for_line(r"ignores reset\(seed=\)")
        with (
            kit.join(tmp_path, target=f"127.0.0.1:{base}", agent=kit.IDLE, cwd=kit.ROOT) as joiner,
            kit.Peer(base) as peer,
        ):
            assert "Unseeded-v0" in joiner.wait_for_line(r"ignores reset\(seed=\)")

            def told() -> bool:
                node = row(peer, "joiner")
                return node is not None and any("Unseeded-v0" in fault for fault in node.faults)

            wait_until(told, 10.0, "the host's status tells of the joiner's environment")
            assert joiner.end(number=signal.SIGINT) == 0


def test_who_explores_least_is_replaced(tmp_path: Path) -> None:
    base = kit.free_base()
    target = f"127.0.0.1:{base}"
    with kit.host(tmp_path, "chain", "--players", "0", name=f"s{base}", port=base) as host:
        host.wait_for("started")
        with (
            kit.join(tmp_path, "--envs", "1", name="first", target=target) as first,
            kit.Peer(base) as peer,
        ):
            working(peer, "first")
            with kit.join(tmp_path, "--envs", "1", name="second", target=target):
                assert ranks(working(peer, "second")) == [1]
                assert ranks(working(peer, "first")) == [0]
                assert first.end() == 0

                def moved() -> bool:
                    node = row(peer, "second")
                    return node is not None and ranks(node) == [0] and node.return_mean is not None

                # Only episodes on the ladder's lowest rung count for the mean, and it had none of those before.
                wait_until(moved, 30.0, "the second joiner takes the place of the first, and plays there")
                wait_until(lambda: working(peer, "second").player_reports[0].steps > 0, 20.0)
                node = row(peer, "second")
                assert node is not None
                assert node.bundles.balanced()
                assert node.bundles.duplicate == 0


def ranks(node: m.NodeStatus) -> list[int]:
    """Its players' ranks, as it says itself."""
    return [report.rank for report in node.player_reports]
