"""Weights from the trainer's publisher through a real broker to real members, in one process: in order, and healed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import msgspec
import numpy as np
import pytest

from p2prl.core import messages as m
from p2prl.core.jobs import Finished
from p2prl.errors import UpgradeNeeded
from p2prl.net.addresses import endpoint
from p2prl.net.keys import new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network
from p2prl.nodes import broker_file
from p2prl.nodes.broker import Broker
from p2prl.nodes.member import Member
from p2prl.nodes.player import Player
from p2prl.nodes.prepare import prepare
from p2prl.nodes.publisher import Publisher
from p2prl.nodes.weights_feed import WeightsFeed
from p2prl.nodes.wiring import BrokerConfig, MemberConfig, PlayerConfig, Staff, publish_port
from p2prl.registry import make_agent, resolve_agent
from p2prl.settings import find_experiment, overlay
from p2prl.wire import frames
from p2prl.wire.blocks import Array
from p2prl.wire.weights import WeightsEncoder, decode_weights
from tests import kit
from tests.conftest import run_until
from tests.loopback.test_member_alone import Said

TRAINER, HOST = new_key_pair(), new_key_pair()


def network_of(seed: int, units: int = 30) -> dict[str, Array]:
    """Layers and what else there is; each seed's are near the others'."""
    rng, step = np.random.default_rng(0), np.random.default_rng(seed)
    layer = rng.normal(0, 0.1, (units, units)) + step.normal(0, 1e-4, (units, units))
    return {"layer": layer.astype(np.float32), "updates": np.array(seed)}


class Place:
    """A broker and the trainer's publisher; members join it."""

    def __init__(self, folder: Path) -> None:
        self.loop, self.base = Loop(), kit.free_base(0)
        self.folder = folder
        prepared = prepare(overlay(find_experiment("chain"), []), folder / "results", False)
        config = BrokerConfig(
            run=prepared.run,
            run_name="run",
            host_name="here",
            keys=HOST,
            staff=Staff(new_key_pair().public, TRAINER.public, new_key_pair().public, new_key_pair().public),
            base_port=self.base,
            bind=["127.0.0.1"],
            shards=0,
            folder=str(prepared.folder),
            state=str(folder / "state"),
            open=True,
        )
        self.run = prepared.run
        self.broker = Broker(config, self.loop)
        self.network = Network()
        self.gone: list[m.WeightsHeader | None] = []
        self.publisher = Publisher(
            self.loop,
            self.network,
            endpoint("127.0.0.1", publish_port(self.base)),
            TRAINER,
            HOST.public,
            True,
            self.gone.append,
        )
        self.members: list[Member] = []
        self.version = -1

    def join(self, name: str) -> Member:
        config = MemberConfig(
            host="127.0.0.1",
            base_port=self.base,
            server_key=HOST.public,
            keys=new_key_pair(),
            name=name,
            players=0,
            spool_bytes=0,
            spool_folder=str(self.folder / name),
            keep_free_bytes=0,
            own=True,
        )
        member = Member(config, self.loop, Said())
        self.members.append(member)
        run_until(self.loop, lambda: member.welcome is not None)
        return member

    def send(self, seed: int, units: int = 30) -> m.WeightsHeader:
        """Hand it to the socket; again if that had no room for a moment."""
        header = None
        while header is None:
            before = len(self.gone)
            self.publisher.publish(network_of(seed, units), self.run.run_id, seed, False)
            run_until(self.loop, lambda before=before: len(self.gone) > before)
            header = self.gone[-1]
        return header

    def publish(self, seed: int, units: int = 30) -> m.WeightsHeader:
        """Until the broker has given it out."""
        header = self.send(seed, units)
        run_until(self.loop, lambda: self.broker.saved.weights_version == header.version)
        return header

    def close(self) -> None:
        self.publisher.settle()
        self.publisher.close()
        for member in self.members:
            member.loop = Loop()  # nobody is to be waited for
            member.close()
        for network in (self.network, self.broker.network):
            network.close()


@pytest.fixture(scope="module", autouse=True)
def _collector() -> None:
    """pyzmq starts a thread with the first large message that is not copied, and keeps it."""
    network = Network()
    ear, mouth = (
        network.server("pair", ["inproc://x"], None),
        network.client("pair", "inproc://x", None, None),
    )
    assert mouth.send([bytes(1_000_000)])
    assert ear.wait(10.0)
    assert ear.receive() is not None
    network.close()


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def holds(member: Member, seed: int, units: int = 30) -> bool:
    """The member's newest weights are those, rounded; they can be read by who has nothing."""
    if member.players.stock.header is None:
        return False
    found = decode_weights(member.players.stock.parts_for()[1])
    if int(found["updates"]) != seed:
        return False
    wanted = network_of(seed, units)["layer"].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found["layer"], wanted)
    return True


def subscribed(place: Place, member: Member, seed: int) -> None:
    """Publish until a broadcast reaches it: that it has subscribed, nobody says."""
    for number in range(seed, seed + 15):
        place.publish(number)
        until = place.loop.now() + 0.3
        run_until(place.loop, lambda: _current(place, member) or place.loop.now() > until)  # noqa: B023
        if _current(place, member):
            return
    raise AssertionError("no broadcast reaches the member")


def _current(place: Place, member: Member) -> bool:
    return member.players.sync.version == place.publisher.version


def test_who_joins_between_keyframes_has_the_newest_and_can_read_what_follows(place: Place) -> None:
    whole = [place.publish(seed).whole for seed in range(3)]
    assert whole == [True, False, False]
    member = place.join("late")
    run_until(place.loop, lambda: holds(member, 2))
    asked = member.players.sync
    for seed in range(3, 12):
        assert not place.publish(seed).whole
    run_until(place.loop, lambda: holds(member, 11))
    assert asked.version == 11


def test_a_version_is_known_to_the_broker_after_a_kill_before_anybody_has_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the price of a few bytes written, not of a new file for each update of a quick learner."""
    monkeypatch.setattr(broker_file, "save", lambda *_: None)
    folder = place.broker.folder
    for seed in range(3):
        version = place.publish(seed).version
        assert broker_file.load(folder).weights_version == version

    def full(folder: Path, version: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    note = broker_file.note_version
    monkeypatch.setattr(broker_file, "note_version", full)
    place.send(3)
    run_until(place.loop, lambda: place.broker.weights._held)
    assert place.broker.weights.newer_than(version) == [], "it might come again after a kill"
    monkeypatch.setattr(broker_file, "note_version", note)
    place.broker.weights.publish_held()
    assert place.broker.weights.newer_than(version) != []
    assert broker_file.load(folder).weights_version == version + 1


class NoFiles(MetaPathFinder):
    """Imports of this module fail as they do where no more files can be opened."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "p2prl.learn.statistics":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)


def test_an_evaluation_that_ends_while_no_file_can_be_opened_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker imports what works out its figures with the first one."""
    done = Finished(version=3, episodes=[(1.0, 5), (2.0, 6)], steps=11)
    monkeypatch.delitem(sys.modules, "p2prl.learn.statistics", raising=False)
    with monkeypatch.context() as context:
        context.setattr(sys, "meta_path", [NoFiles(), *sys.meta_path])
        place.broker.evaluation._take_down(done)
    assert place.broker.saved.evaluation is None
    assert "the evaluation of weights v3 was given up: its figures could not be worked out" in caplog.text
    place.broker.evaluation._take_down(done)
    assert place.broker.saved.evaluation is not None
    assert place.broker.saved.evaluation.return_mean == 1.5


def test_who_missed_a_keyframe_gets_whole_weights(place: Place) -> None:
    member = place.join("cut off")
    subscribed(place, member, 0)
    before = place.publisher.version
    member.feed.hang_up()
    place.publisher.restart(before)
    assert place.publish(2000).whole
    assert not place.publish(2001).whole
    assert member.players.stock.header is not None
    assert member.players.stock.header.version == before, "nothing reached it"
    member.feed.subscribe(member.config)
    subscribed(place, member, 2002)
    assert member.players.stock.keyframe == before + 1
    assert holds(member, 2002 + place.publisher.version - before - 3)


def test_a_change_on_a_keyframe_that_is_not_here_is_asked_for_at_once(place: Place) -> None:
    member = place.join("one")
    place.publish(0)
    run_until(place.loop, lambda: holds(member, 0))
    place.publish(1)
    parts = place.broker.weights.newer_than(-1, place.publisher.version - 1)
    header = frames.decode_weights_header(parts[0])
    assert not header.whole
    member.feed.hang_up()
    member.players.stock.clear()
    member.players.sync.reset()
    asks: list[m.Message] = []
    said = Said()
    feed = WeightsFeed(place.loop, member.network, member.players, asks.append, said.log, member._fail)
    feed.welcome = member.welcome
    for _ in range(2):
        feed.came(header, parts[1:])
        assert asks == [m.WeightsAsk()]
    member.control.send(asks[0])
    run_until(place.loop, lambda: holds(member, 1))
    assert member.players.sync.version == header.version


def test_a_broker_that_lacks_the_keyframe_gives_out_nothing_until_it_has_one(place: Place) -> None:
    place.publish(0)
    member = place.join("one")
    run_until(place.loop, lambda: holds(member, 0))
    place.broker.weights._published.clear()  # as of a broker that was started again
    place.publisher.publish(network_of(1), place.run.run_id, 1, False)
    refused = place.gone[-1]
    assert refused is not None
    assert not refused.whole
    place.publisher.restart(refused.version)  # as its welcome makes the trainer do
    assert place.publish(2).whole
    run_until(place.loop, lambda: holds(member, 2))
    assert place.publisher.version == refused.version + 1


def test_large_weights_are_encoded_meanwhile_one_set_at_a_time_and_in_order(place: Place) -> None:
    units = 700  # 2 MB
    place.publisher.publish(network_of(0, units), place.run.run_id, 0, False)
    assert place.publisher.busy
    assert not place.gone
    run_until(place.loop, lambda: place.gone)
    assert not place.publisher.busy
    place.publisher.publish(network_of(1, units), place.run.run_id, 1, False)
    assert place.publisher._future is not None
    assert not place.publisher._future.result().whole
    place.publisher.restart(40)  # a broker without weights came in between: a change is of no use to it
    run_until(place.loop, lambda: len(place.gone) == 2)
    assert place.gone[1] is None
    whole = place.publish(2, units)
    assert (whole.version, whole.whole) == (41, True)
    place.publisher.publish(network_of(3, units), place.run.run_id, 3, False)
    place.publisher.settle()  # as at the end of a run
    last = place.gone[-1]
    assert last is not None
    assert (last.version, last.whole, last.updates) == (42, False, 3)
    place.publisher.restart(1)  # a broker that knows of less: versions do not go back
    assert place.publish(4, units).version == 43
    member = place.join("one")
    run_until(place.loop, lambda: holds(member, 4, units))


def test_a_full_socket_skips_versions_and_takes_none_for_sent(tmp_path: Path) -> None:
    """Nobody listens: two wait in the socket, and what follows refers to neither a lost keyframe nor a lost change."""
    loop, network, gone = Loop(), Network(), []
    where = endpoint("127.0.0.1", kit.free_base(0))
    publisher = Publisher(loop, network, where, TRAINER, HOST.public, True, gone.append)
    for seed in range(5):
        publisher.publish(network_of(seed), "r", seed, False)
    sent = [header for header in gone if header is not None]
    assert len(sent) < 5
    assert publisher.version == len(sent) - 1
    publisher.close()
    network.close()


def test_a_node_that_cannot_read_the_weights_is_refused_at_the_welcome(place: Place) -> None:
    loop, network, answers = place.loop, Network(), []
    socket = network.client(
        "dealer", endpoint("127.0.0.1", place.base), new_key_pair(), HOST.public, Limits()
    )
    loop.on_readable(socket, lambda: answers.append(socket.receive()))
    for version, codecs in (("99.0", ("keyframes-2",)), ("0.0.1", ())):
        hello = m.Hello(
            protocol=m.PROTOCOL,
            version=version,
            role="member",
            name="other",
            boot_id="b",
            players=1,
            weights_codecs=codecs,
        )
        socket.send([frames.encode(hello)])
        run_until(loop, lambda: answers)
        [received] = answers
        answers.clear()
        refusal = frames.decode_from_broker(received.frames[0])
        assert isinstance(refusal, m.Refusal)
        assert refusal.reason == "protocol"
        side = "on the host to the version of this node (99.0)" if codecs else "on this node to"
        assert "'keyframes'" in refusal.text
        assert f"upgrade p2prl {side}" in refusal.text
    assert place.broker.members.peers == {}
    loop.forget(socket)
    network.close()


def test_a_member_ends_and_says_so_if_it_cannot_read_the_weights(place: Place) -> None:
    member = place.join("old")
    header = m.WeightsHeader(run_id=place.run.run_id, version=5, codec="keyframes-2", size_bytes=3)
    member.feed.came(header, [b"abc"])
    with pytest.raises(UpgradeNeeded, match="sends weights as 'keyframes-2', which this node"):
        member.run()
    place.members.remove(member)


def test_a_player_reads_changes_and_what_is_whole(tmp_path: Path) -> None:
    """Each acts with exactly what was published, rounded."""
    experiment = overlay(find_experiment("cartpole"), ["agent.hidden=[8]"])
    run = prepare(experiment, tmp_path / "results", False).run
    loop, network = Loop(), Network()
    socket = network.server("router", ["tcp://127.0.0.1:*"], None)
    routes: list[bytes] = []

    def hear() -> None:
        while (received := socket.receive()) is not None:
            routes.append(received.peer)

    loop.on_readable(socket, hear)
    config = PlayerConfig(
        run=msgspec.structs.replace(run, envs=1),
        seat=m.Seat(rank=0, seed=1),
        start=0,
        slots=1,
        agent="",
        endpoint=socket.bound,
    )
    player = Player(config, loop)
    try:
        player.start()
        run_until(loop, lambda: routes)
        learner = make_agent(resolve_agent(run.agent_name), run.env, run.agent_settings).learner("cpu", 1)
        encoder, weights = WeightsEncoder(halves=True), dict(learner.weights())
        for version in range(4):
            if version == 2:
                encoder.restart()
            encoded = encoder.encode(weights)
            encoder.sent(encoded)
            header = m.WeightsHeader(
                run_id=run.run_id, version=version, codec=m.WEIGHTS_CODEC, size_bytes=len(encoded.payload)
            )
            socket.send([frames.encode(header), encoded.payload], routes[0])
            run_until(loop, lambda version=version: player.version == version)
            for name, values in player.actor._weights.items():
                exact = weights[name]
                np.testing.assert_array_equal(
                    values, exact.astype(np.float16).astype(np.float32) if exact.ndim == 2 else exact
                )
            weights = {name: values + np.float32(1e-3) for name, values in weights.items()}
    finally:
        player.rollout.close()
        player.network.close()
        network.close()
