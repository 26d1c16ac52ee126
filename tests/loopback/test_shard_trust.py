"""A shard's process, alone with a broker made by hand: from whom it takes sessions, whose it samples, and how many."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from p2prl.core import messages as m
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.net.keys import KeyPair, fingerprint, new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network, Received, Socket
from p2prl.nodes.shard import _GATHER_S, Shard, pull_limits
from p2prl.nodes.wiring import ShardConfig, Staff, push_port, sample_port
from p2prl.wire import frames
from p2prl.wire.bundle import MAX_PAYLOAD_BYTES, encode_bundle
from tests import kit
from tests.conftest import run_until
from tests.unit.replay_kit import BOOT, CARTPOLE, RUN, make_bundle, play

ANN, BOB, EVE = new_key_pair(), new_key_pair(), new_key_pair()
HOST, TRAINER, SHARD = new_key_pair(), new_key_pair(), new_key_pair()
NAMES = {ANN.public: "ann", BOB.public: "bob", EVE.public: "eve", "": ""}


def run_spec(**env: Any) -> m.RunSpec:
    """A run of CARTPOLE sessions; `env` is what the environment declares."""
    box = Leaf("box", "float32", (4,), (-1.0,), (1.0,))
    spec = EnvSpec("Test-v0", box, Leaf("discrete", "uint8", (), (0.0,), (1.0,)), **env)
    texts = dict.fromkeys(("env_package", "env_hash", "agent_package", "agent_hash"), "")
    return m.RunSpec(
        run_id=RUN,
        seed=1,
        env_id="Test-v0",
        env_args={},
        env=spec,
        agent_name="idle",
        agent_settings={},
        schema=CARTPOLE,
        ladder=1,
        when_full="wait",
        window_bytes=1_000_000,
        window_bundles=8,
        max_lag=0,
        envs=4,
        **texts,
    )


class Alone:
    """A Shard and the broker that it talks to, on one loop."""

    def __init__(self, folder: Path, run: m.RunSpec, more: dict[str, Any]) -> None:
        self.base, self.loop = kit.free_base(1), Loop()
        self.verdicts: dict[str, list[m.Verdict]] = {}
        self.receipts = 0
        self._far = Network()
        self._broker = Network(self.loop)
        self._control = self._broker.server("router", [f"tcp://127.0.0.1:{self.base}"], HOST)
        self.loop.on_readable(self._control, self._on_control)
        self._route = b""
        config = ShardConfig(
            run=run,
            index=0,
            server_keys=HOST,
            shard_keys=SHARD,
            staff=Staff("owner", TRAINER.public, SHARD.public, "member"),
            base_port=self.base,
            bind=["127.0.0.1"],
            folder=str(folder),
            broker="127.0.0.1",
            kind=more.pop("kind", "uniform"),
            capacity_bytes=1000 * CARTPOLE.session_bytes(),
            window=more.pop("window", 1),
            **more,
        )
        self.shard = Shard(config, self.loop)
        self.until(lambda: self._route and self.shard.control.welcomed)

    def _on_control(self) -> None:
        while (received := self._control.receive()) is not None:
            message = frames.decode_to_broker(received.frames[0])
            if isinstance(message, m.Hello):
                self._route = received.peer
                self._tell(self._welcome())
            elif isinstance(message, m.ShardReceipts):
                self.verdicts.setdefault(NAMES[message.node], []).extend(message.verdicts)
                self.receipts += 1

    def _welcome(self) -> m.Welcome:
        return m.Welcome(
            run=self.shard.config.run,
            host_name="h",
            version="0",
            term=1,
            shards=[],
            weights_version=0,
            weights_port=1,
        )

    def _tell(self, message: m.Message) -> None:
        self._control.send([frames.encode(message)], self._route)

    def access(
        self,
        *admitted: KeyPair,
        open_: bool = False,
        barred: tuple[KeyPair, ...] = (),
        quarantined: tuple[KeyPair, ...] = (),
    ) -> None:
        """Tell the shard who may come, and wait until it knows."""
        lists = [[keys.public for keys in some] for some in (admitted, barred, quarantined)]
        access = m.Access(open=open_, admitted=lists[0], barred=lists[1], quarantined=lists[2])
        self._tell(access)
        self.until(lambda: self.shard.guests.access == access)

    def until(self, condition: Callable[[], object], timeout: float = 10.0) -> None:
        run_until(self.loop, condition, timeout, lambda: f"refused: {self.refused()}")

    def dial(
        self, keys: KeyPair | None, port: int = 0, server_key: str | None = HOST.public, **more: Any
    ) -> Socket:
        """A PUSH to the shard, or with another port a DEALER."""
        kind, port = ("dealer", port) if port else ("push", push_port(self.base, 0))
        limits = Limits(message_bytes=10_000_000, linger_ms=0, **more)
        return self._far.client(kind, f"tcp://127.0.0.1:{port}", keys, server_key, limits)  # type: ignore[arg-type]

    def give(self, socket: Socket, *seqs: int) -> None:
        """Honest bundles."""
        for seq in seqs:
            self.until(lambda seq=seq: socket.send(bundle(seq)))  # type: ignore[misc]

    def said(self, name: str) -> Counter[str]:
        """Verdicts on one node's bundles, by status and reason."""
        words = (
            " ".join((verdict.status, verdict.reason)).strip() for verdict in self.verdicts.get(name, [])
        )
        return Counter(words)

    def refused(self) -> dict[str, dict[str, int]]:
        """What the shard refused, by node and reason."""
        by_node = self.shard.store.counters.refused_by_node
        return {NAMES.get(key, key): dict(reasons) for key, reasons in by_node.items()}

    def sampled(self, trainer: Socket, count: int = 200) -> tuple[m.SampleReply, set[int]]:
        """A sample, and the seeds of the bundles that are in it."""
        assert trainer.send([frames.encode(m.SampleAsk(ask=1, count=count))])
        got: list[Received] = []

        def answered() -> bool:
            received = trainer.receive()
            got.extend([received] if received else [])
            return bool(got)

        self.until(answered)
        reply = frames.decode_sample(got[0].frames[0])
        assert isinstance(reply, m.SampleReply)
        if not reply.count:
            return reply, set()
        obs = np.frombuffer(bytes(got[0].frames[1]), np.float32).reshape(reply.count, -1, 4)
        return reply, {int(seed) for seed in obs[:, 0, 2]}

    def close(self) -> None:
        self.shard.store.close()
        self.shard.network.close()
        self._broker.close()
        self._far.close()


Start = Callable[..., Alone]


@pytest.fixture(name="start")
def _start(tmp_path: Path) -> Iterator[Start]:
    """Starts the shard of a run whose environment declares what is said."""
    begun: list[Alone] = []

    def start(env: dict[str, Any] | None = None, run: m.RunSpec | None = None, **config: Any) -> Alone:
        begun.append(Alone(tmp_path / str(len(begun)), run or run_spec(**(env or {})), config))
        return begun[-1]

    yield start
    for alone in begun:
        alone.close()


def bundle(seq: int) -> list[bytes]:
    """Bundle `seq` of a node, with that seed."""
    header, payload = make_bundle(seed=seq)
    delivery = m.Delivery(run_id=RUN, boot_id=BOOT, seq=seq)
    return [frames.encode(delivery), frames.encode(header), payload]


# --- who may give


def test_nothing_is_read_before_it_is_known_who_may_give(start: Start) -> None:
    alone = start()
    ann = alone.dial(ANN)
    alone.until(lambda: alone.shard.network.held == 1)
    assert ann.send(bundle(0))
    trainer = alone.dial(TRAINER, sample_port(alone.base, 0))
    assert trainer.send([frames.encode(m.SampleAsk(ask=1, count=0))])
    assert (alone.verdicts, alone.refused(), trainer.receive()) == ({}, {}, None)
    alone.access(ANN)
    alone.until(lambda: alone.said("ann") == {"stored": 1})
    alone.until(trainer.receive)
    assert alone.refused() == {}


def test_a_barred_node_is_cut_at_once_and_the_others_go_on(start: Start) -> None:
    alone = start()
    alone.access(ANN, BOB)
    ann, bob = alone.dial(ANN), alone.dial(BOB)
    alone.give(ann, 0)
    alone.give(bob, 0)
    alone.until(lambda: alone.said("ann") == alone.said("bob") == {"stored": 1})
    alone.access(ANN, barred=(BOB,))
    # Bob's connection is gone, and the next is refused: what he says is not even read.
    alone.until(lambda: alone.refused().get("bob") == {"not_admitted": 1})
    bob.send(bundle(1))

    def ann_goes_on() -> bool:
        ann.send(bundle(1))
        return alone.said("ann")["stored"] == 2

    alone.until(ann_goes_on)
    assert alone.said("bob") == {"stored": 1}
    # And back again, after he dials anew: libzmq does not after a refusal.
    alone.access(ANN, BOB)
    alone.give(alone.dial(BOB), 1)
    alone.until(lambda: alone.said("bob") == {"stored": 2})


def test_what_comes_over_a_connection_that_outlived_its_right_is_refused(start: Start) -> None:
    """Held back a moment, as when two nodes are put out shortly after each other."""
    alone = start()
    alone.access(ANN, BOB)
    bob = alone.dial(BOB)
    alone.give(bob, 0)
    alone.until(lambda: alone.said("bob") == {"stored": 1})
    alone.shard.pull.reopened = alone.loop.now()
    alone.access(ANN, barred=(BOB,))
    alone.give(bob, 1, 2, 3)
    alone.until(lambda: alone.refused().get("bob", {}).get("not_admitted", 0) >= 3)
    assert alone.said("bob") == {"stored": 1}
    alone.until(lambda: alone.refused()["bob"]["not_admitted"] >= 4)  # by ZAP, once the cut came


def test_an_open_host_takes_from_all_but_the_barred(start: Start) -> None:
    alone = start()
    alone.access(open_=True, barred=(EVE,))
    alone.give(alone.dial(ANN), 0)
    alone.dial(EVE).send(bundle(0))
    alone.until(lambda: alone.said("ann") == {"stored": 1})
    alone.until(lambda: alone.refused() == {"eve": {"not_admitted": 1}})


def test_strangers_are_counted_together(start: Start) -> None:
    """A row for each key that dials would leave none for nodes."""
    alone = start()
    alone.access(ANN)
    alone.dial(None, server_key=None)
    alone.dial(ANN, server_key=EVE.public)
    for _ in range(3):
        alone.dial(new_key_pair(), sample_port(alone.base, 0))
    alone.until(lambda: alone.refused().get("", {}).get("not_permitted") == 3)
    alone.until(lambda: sum(alone.refused()[""].values()) >= 5)
    assert alone.refused().keys() == {""}
    assert alone.refused()[""].keys() <= {"not_permitted", "no_curve", "bad_handshake"}


def test_only_the_trainer_gets_samples(start: Start) -> None:
    alone = start()
    alone.access(ANN, TRAINER)
    sampler = alone.dial(ANN, sample_port(alone.base, 0))
    sampler.send([frames.encode(m.SampleAsk(ask=1, count=1))])
    alone.until(lambda: alone.refused() == {"ann": {"not_permitted": 1}})
    alone.give(alone.dial(ANN), 0)
    alone.until(lambda: alone.said("ann") == {"stored": 1})
    reply, seeds = alone.sampled(alone.dial(TRAINER, sample_port(alone.base, 0)))
    assert (reply.count, seeds) == (200, {0})
    assert sampler.receive() is None


# --- whose is sampled


def test_a_quarantined_nodes_sessions_are_not_sampled_until_it_is_undone(start: Start) -> None:
    alone = start()
    alone.access(ANN, BOB)
    ann, bob = alone.dial(ANN), alone.dial(BOB)
    trainer = alone.dial(TRAINER, sample_port(alone.base, 0))
    alone.give(ann, 0, 1)
    alone.give(bob, 2, 3)
    alone.until(lambda: alone.said("ann") == alone.said("bob") == {"stored": 2})
    before, seeds = alone.sampled(trainer)
    assert seeds == {0, 1, 2, 3}
    alone.access(ANN, barred=(BOB,), quarantined=(BOB,))
    during, seeds = alone.sampled(trainer)
    assert seeds == {0, 1}
    assert during.mass < before.mass
    assert (during.ticks, during.inserted_ticks) == (before.ticks // 2, before.inserted_ticks)
    alone.access(ANN, BOB)
    after, seeds = alone.sampled(trainer)
    assert (after.mass, seeds) == (before.mass, {0, 1, 2, 3})


# --- how often it is sampled


def priorities(count: int, ids: Any, values: Any, highest: float = 0.0) -> list[Any]:
    """As a trainer sends them."""
    message = frames.encode(m.Priorities(count=count, highest=highest))
    return [message, np.array(ids, np.int64).tobytes(), np.array(values, np.float32).tobytes()]


def test_a_trainers_priorities_change_what_is_sampled_and_bad_ones_only_a_counter(start: Start) -> None:
    alone = start(kind="prioritised", window=0)
    alone.access(ANN)
    alone.give(alone.dial(ANN), 0, 1)
    alone.until(lambda: alone.said("ann") == {"stored": 2})
    trainer = alone.dial(TRAINER, sample_port(alone.base, 0))
    reply, seeds = alone.sampled(trainer)
    assert seeds == {0, 1}
    assert (reply.priority_total, reply.highest) == (float(reply.mass), 0.0)
    bad: list[list[Any]] = [
        priorities(1, [[0, 0]], [np.nan]),
        priorities(1, [[0, 0]], [-1.0]),
        priorities(1, [[0, 10**9]], [1.0]),
        priorities(2, [[0, 0]], [1.0]),
        priorities(1, [[0, 0]], [1.0])[:2],
        priorities(1, [[0, 0]], [1.0])[:1],
        priorities(-1, [[0, 0]], [1.0]),
        priorities(1, [[0, 0]], [1.0], highest=float("nan")),
        [frames.encode(m.SampleAsk(ask=1, count=1, highest=-1.0))],
    ]
    for number, parts in enumerate(bad, 1):
        assert trainer.send(parts)
        alone.until(lambda sure=number: sum(alone.refused().get("", {}).values()) == sure)
    assert alone.refused() == {"": {"not_finite": 2, "malformed": 7}}
    assert alone.sampled(trainer)[0].priority_total == reply.priority_total
    # The four sessions of the first bundle, of eight: hardly ever from now on.
    assert trainer.send(priorities(4, [[session, session] for session in range(4)], [1e-9] * 4, highest=2.0))
    after, seeds = alone.sampled(trainer)
    assert seeds == {1}
    assert (after.mass, after.highest) == (8, 2.0)
    assert after.priority_total == pytest.approx(4 * 2.0)


def test_only_the_trainer_says_what_is_sampled(start: Start) -> None:
    alone = start(kind="prioritised", window=0)
    alone.access(ANN)
    alone.give(alone.dial(ANN), 0)
    alone.until(lambda: alone.said("ann") == {"stored": 1})
    stranger = alone.dial(ANN, sample_port(alone.base, 0))
    stranger.send(priorities(1, [[0, 0]], [100.0]))
    alone.until(lambda: alone.refused() == {"ann": {"not_permitted": 1}})
    trainer = alone.dial(TRAINER, sample_port(alone.base, 0))
    reply, _ = alone.sampled(trainer)
    assert reply.priority_total == reply.mass


# --- what the environment says cannot be


def test_what_the_environment_declares_is_held_against_a_bundle(start: Start) -> None:
    alone = start({"reward_range": (0.0, 1.0), "max_episode_steps": 20})
    alone.access(ANN)
    ann = alone.dial(ANN)
    arrays, steps, ended = play(4, 1)

    def encoded(episodes: list[tuple[float, int, float]], reward: float) -> list[bytes]:
        changed = {**arrays, "reward": arrays["reward"] * np.float32(reward)}
        header, payload = encode_bundle(
            CARTPOLE, changed, slots=4, version=0, rank=0, serial=0, steps=steps, episodes=episodes
        )
        return [frames.encode(header), payload]

    tries: list[tuple[tuple[float, int, float], float]] = [
        ((5.0, 5, 0.0), 1.0),
        ((5.0, 21, 0.0), 1.0),
        ((6.0, 5, 0.0), 1.0),
        ((5.0, 5, 0.0), 1.5),
    ]
    for seq, (episode, reward) in enumerate(tries):
        delivery = frames.encode(m.Delivery(run_id=RUN, boot_id=BOOT, seq=seq))
        assert ann.send([delivery, *encoded([episode] * len(ended), reward)])
    alone.until(lambda: alone.said("ann") == {"stored": 1, "refused out_of_bounds": 3})
    assert alone.refused() == {"ann": {"out_of_bounds": 3}}


# --- how many


def test_over_its_quota_a_node_is_told_busy_and_loses_nothing(start: Start) -> None:
    alone = start(node_bundles_per_s=4.0)
    alone.access(ANN)
    ann = alone.dial(ANN, send_messages=100)
    alone.give(ann, *range(30))
    alone.until(lambda: alone.said("ann").total() == 30)
    assert 20 <= alone.said("ann")["stored"] < 30
    assert alone.said("ann").keys() == {"stored", "busy over_quota"}
    assert alone.refused() == {}
    [warning] = alone.shard.store.warnings
    assert fingerprint(ANN.public) in warning
    left = {verdict.seq for verdict in alone.verdicts["ann"] if verdict.status == "busy"}

    def settled() -> bool:
        """As an honest member does: what was busy comes again, later."""
        while alone.verdicts["ann"]:
            verdict = alone.verdicts["ann"].pop()
            if verdict.status == "stored":
                left.discard(verdict.seq)
            else:
                again.add(verdict.seq)
        if again and alone.loop.now() >= due[0]:
            due[0] = alone.loop.now() + 0.3
            ann.send(bundle(again.pop()))
        return not left

    again, due = set(left), [0.0]
    alone.verdicts["ann"] = []
    alone.until(settled, 30.0)
    assert alone.shard.store.stored_total == 30


def test_a_flood_over_many_connections_leaves_the_others_their_share(start: Start) -> None:
    """The flood is as fast as a thread can send; meanwhile another node gives, and all of it is taken."""
    alone = start(node_bundles_per_s=50.0)
    alone.access(ANN, EVE)
    ann = alone.dial(ANN)
    ended = threading.Event()
    thread = threading.Thread(target=flood, args=(push_port(alone.base, 0), ended))
    thread.start()
    try:
        alone.until(lambda: alone.refused().get("eve", {}).get("over_quota", 0) > 1000, 30.0)
        for seq in range(60):
            alone.give(ann, seq)
            alone.until(lambda seq=seq: alone.said("ann")["stored"] == seq + 1)  # type: ignore[misc]
    finally:
        ended.set()
        thread.join()
    assert alone.said("ann") == {"stored": 60}
    told = alone.said("eve")
    # Two a second for each bundle of the window, here 8, and five seconds' worth at once; taken: 50 a second.
    assert told["busy over_quota"] < 16 * 60
    assert told["stored"] <= 100  # its bundles had a hundred numbers
    assert alone.refused()["eve"]["over_quota"] > 1000


def flood(port: int, ended: threading.Event) -> None:
    network = Network()
    limits = Limits(linger_ms=0)
    sockets = [network.client("push", f"tcp://127.0.0.1:{port}", EVE, HOST.public, limits) for _ in range(20)]
    seq = 0
    while not ended.is_set():
        sent = False
        for socket in sockets:
            sent |= socket.send(bundle(seq % 100))
            seq += 1
        if not sent:
            ended.wait(0.001)
    network.close()


# --- how large


@pytest.mark.parametrize(("ticks", "largest"), [(8, 1 << 20), (5000, MAX_PAYLOAD_BYTES)])
def test_no_message_is_larger_than_a_bundle_of_the_run_and_few_large_ones_wait(
    ticks: int, largest: int
) -> None:
    limits = pull_limits(msgspec.structs.replace(CARTPOLE, ticks=ticks))
    assert largest <= limits.message_bytes <= largest + 100_000
    assert limits.message_bytes * limits.receive_messages <= 300_000_000
    assert limits.receive_messages >= 4


def test_what_a_fast_node_sends_while_bundles_gather_fits_into_a_queue() -> None:
    limits = pull_limits(msgspec.structs.replace(CARTPOLE, ticks=100))
    assert limits.receive_messages >= 2000 * _GATHER_S
