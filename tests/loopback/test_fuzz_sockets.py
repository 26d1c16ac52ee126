"""Thousands of damaged messages at each live socket of a host, and plain TCP noise: no process dies of it, what is
refused is counted, and an honest joiner loses nothing. `scripts/fuzz` throws as many as it is told to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import psutil
import pytest

from p2prl.core import messages as m
from p2prl.net.keys import fingerprint, new_key_pair
from p2prl.nodes.shard import pull_limits
from p2prl.wire import frames
from tests import fuzz_arena, fuzz_kit
from tests.conftest import wait_until
from tests.fuzz_arena import BURST, CONTROL, MAX_GROWTH, TARGETS, WEIGHTS, Arena, Target
from tests.hostile import PICKLE

MESSAGES = 2000
_NAMED = {target.name: target for target in TARGETS}
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
#: Why a connection does not come about.
_DOORS = {"not_admitted", "not_permitted", "no_curve", "bad_handshake"}


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with fuzz_arena.arena(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


@every_target
def test_damaged_messages(arena: Arena, target: Target) -> None:
    # The enrol socket looks at a hundred messages a second, whoever sends them.
    count = MESSAGES // 4 if target.name == "enrol" else MESSAGES
    volley = arena.fire(target, count, random.Random(f"{target.name} 1"), ("admitted", "stranger"))
    arena.unharmed()
    assert volley.thrown == count
    assert (volley.crashes, volley.lost) == (0, 0)
    assert (
        volley.cut == 0 or target.name == "weights"
    )  # who asks there for what nobody has is put out at once
    assert volley.growth < MAX_GROWTH
    assert set(volley.refused) <= set(m.REFUSALS)
    assert volley.refused.total() >= volley.sure
    if target.name in ("publish", "sample 0", "sample 1"):  # only the trainer gets through to these
        assert volley.turned_away == count // BURST
    elif target.name != "weights":
        assert volley.turned_away == 0
        assert volley.sure > count / 4, "hardly anything that was thrown was wrong"


# --- pickles -------------------------------------------------------------------------------------------------------


def _messages_of(arena: Arena, target: Target) -> list[list[bytes]]:
    """Sound messages of a socket."""
    if target is CONTROL:
        return [[frames.encode(m.StatusAsk())], [frames.encode(m.WeightsAsk())]]
    if target.name == "enrol":
        return [[frames.encode(m.EnrolAsk(protocol=m.PROTOCOL, version="0", node_key=""))]]
    return [arena.bundle(seq=5)]


def _with_pickles(parts: list[bytes]) -> list[list[bytes]]:
    """In the place of each frame, and before, between and behind them."""
    instead = [[*parts[:i], PICKLE, *parts[i + 1 :]] for i in range(len(parts))]
    beside = [[*parts[:i], PICKLE, *parts[i:]] for i in range(len(parts) + 1)]
    return instead + beside


#: Refusals of one key, far from the limit.
_PATIENCE = 60


def _malformed(arena: Arena, target: Target, before: Counter[str], due: int) -> bool:
    return (arena.refused(target) - before)["malformed"] >= due


def test_pickles_in_every_position_are_refused(arena: Arena) -> None:
    targets = [target for target in TARGETS if target.decode is not None]
    with ExitStack() as stack:
        for target in targets:
            bad = [pickled for parts in _messages_of(arena, target) for pickled in _with_pickles(parts)]
            for first in range(0, len(bad), _PATIENCE):  # of one key more would end in quarantine
                key = new_key_pair() if target.curve else None
                thrower = stack.enter_context(arena.thrower(target, key))
                some, before = bad[first : first + _PATIENCE], arena.refused(target)
                for parts in some:
                    thrower.say(parts)
                wait_until(
                    partial(_malformed, arena, target, before, len(some)),
                    15.0,
                    f"all at {target.name} are refused",
                )
    arena.unharmed()


def test_pickles_where_nothing_is_read(arena: Arena) -> None:
    """A subscription is a filter; and only the trainer gets through to the others."""
    targets = [target for target in TARGETS if target.decode is None]
    with ExitStack() as stack:
        throwers = [stack.enter_context(arena.thrower(target, new_key_pair())) for target in targets]
        for thrower in throwers:
            for parts in ([PICKLE], [b"\x01" + PICKLE], [PICKLE, PICKLE]):
                thrower.say(parts)
        doors = {target.name: thrower.door() for target, thrower in zip(targets, throwers, strict=True)}
    assert doors == {"weights": "in", "publish": "out", "sample 0": "out", "sample 1": "out"}
    arena.unharmed()


# --- other ways ----------------------------------------------------------------------------------------------------


def test_nobody_gets_in_without_curve(arena: Arena) -> None:
    targets = [target for target in TARGETS if target.curve]
    before = [arena.refused(target) for target in targets]
    with ExitStack() as stack:
        throwers = [stack.enter_context(arena.thrower(target, None)) for target in targets]
        for thrower in throwers:
            for _ in range(20):
                thrower.say([PICKLE])
        assert [thrower.door() for thrower in throwers] == ["out"] * len(targets)
    arena.unharmed()
    for target, old in zip(targets, before, strict=True):
        assert set(arena.refused(target) - old) <= _DOORS


def test_one_key_that_never_stops_is_put_out(arena: Arena) -> None:
    keys, rng = new_key_pair(), random.Random(4)
    with arena.thrower(CONTROL, keys) as thrower:
        arena.introduce(thrower)
        for _ in range(MESSAGES):
            thrower.say([fuzz_kit.mutate_bytes(b"garbage", rng)])

        def put_out() -> bool:
            known = arena.watcher.ask(m.NodesAsk(), m.NodesReply).nodes
            return any(node.key == keys.public and node.standing == "quarantined" for node in known)

        wait_until(put_out, 15.0, "the key is quarantined")
    arena.unharmed()
    with arena.thrower(CONTROL, keys) as thrower:
        assert thrower.door() == "out"


def test_topics_that_nobody_needs_do_not_fill_the_memory(arena: Arena) -> None:
    """ZeroMQ keeps a subscriber's topics, at some fifty bytes a letter, for as long as it is connected."""
    rng, memory = random.Random(5), arena.memory()
    with arena.thrower(WEIGHTS, new_key_pair()) as thrower:
        assert thrower.door() == "in"
        for _ in range(20_000):
            thrower.look()
            if thrower.ended:
                break
            thrower.say([b"\x01" + rng.randbytes(300)])
        wait_until(lambda: thrower.look() and thrower.ended, 15.0, "who asks for such topics is put out")
        assert arena.memory() - memory < MAX_GROWTH
    arena.unharmed()
    # ZeroMQ itself takes back what a lost subscriber had asked for, in nobody's name: nobody is to be put out for it.
    assert fingerprint("") not in arena.program.stderr


def test_large_messages_wait_with_those_who_send_them(arena: Arena) -> None:
    """What the broker cannot take at once fills the sender's queue, and not the host's memory."""
    reports = [m.PlayerReport(rank=1, state="x")] * 2000
    beat = frames.encode(m.Heartbeat(boot_id="b", state="working", players=reports))
    assert 150_000 < len(beat) < frames.MAX_TO_BROKER_BYTES
    memory, peak = arena.memory(), 0
    with ExitStack() as stack:
        throwers = [stack.enter_context(arena.thrower(CONTROL, new_key_pair(), queue=10)) for _ in range(10)]
        assert [thrower.door() for thrower in throwers] == ["in"] * len(throwers)
        for _ in range(200):
            for thrower in throwers:
                thrower.say([beat])
            peak = max(peak, arena.memory() - memory)
    assert peak < MAX_GROWTH
    arena.unharmed()


def test_forty_nodes_that_send_a_shard_large_garbage_do_not_fill_its_memory(arena: Arena) -> None:
    """Forty queues could hold 2.5 GB. The shard takes turns, and looks at each message no longer than it must, so what
    is too much waits with its sender."""
    target, junk, rounds, nodes = _NAMED["push 0"], bytes(1_000_000), 20, 40
    limits = pull_limits(arena.run.schema)
    assert len(junk) <= limits.message_bytes
    assert limits.receive_messages >= rounds, "all that is sent could wait there"
    memory, peak = arena.memory(), 0
    with ExitStack() as stack:
        throwers = [stack.enter_context(arena.thrower(target, new_key_pair(), queue=2)) for _ in range(nodes)]
        assert {thrower.door() for thrower in throwers} == {"in"}
        before = arena.refused(target)
        for _ in range(rounds):
            for thrower in throwers:
                thrower.say([junk])
            peak = max(peak, arena.memory() - memory)
        wait_until(
            partial(_malformed, arena, target, before, nodes * (rounds - 2)), 30.0, "nearly all is refused"
        )
    # One message of each is on its way into the process, and one or two wait.
    assert peak < 2 * MAX_GROWTH < nodes * rounds * len(junk) / 3
    arena.unharmed()


# --- a host that does not admit everybody --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with fuzz_arena.arena(tmp_path_factory.mktemp("closed"), open_=False) as made:
        yield made


@pytest.mark.skipif(
    not hasattr(psutil.Process, "rlimit"), reason="no limits of another process on this system"
)
def test_more_connections_than_a_process_may_have(closed: Arena) -> None:
    """Nobody needs a key to open connections and say nothing. Here the first one breaks while no file can be opened."""
    broker, before = closed.process("broker"), closed.refused(CONTROL)
    limit = broker.rlimit(psutil.RLIMIT_NOFILE)
    few = broker.num_fds() + 20
    broker.rlimit(psutil.RLIMIT_NOFILE, (few, limit[1]))
    with ExitStack() as stack:
        silent = [stack.enter_context(closed.dial(CONTROL)) for _ in range(60)]
        wait_until(lambda: broker.num_fds() >= few, 15.0, "it can open no more")
        silent[0].sendall(fuzz_arena.greeting(b"NULL", random.Random(0)))
        wait_until(lambda: closed.refused(CONTROL) != before or closed.restarted(), 15.0, "it is counted")
        closed.unharmed()
    broker.rlimit(psutil.RLIMIT_NOFILE, limit)
    closed.unharmed()


def test_a_key_that_was_not_let_in_is_not_heard(closed: Arena) -> None:
    targets = [target for target in TARGETS if target.curve]
    before = [closed.refused(target) for target in targets]
    rng = random.Random(6)
    with ExitStack() as stack:
        bursts = [closed.burst(stack, target, "stranger", BURST, rng) for target in targets]
        assert [burst.thrower.door() for burst in bursts] == ["out"] * len(targets)
        assert [burst.thrower.hear() for burst in bursts] == [None] * len(targets)
    closed.unharmed()
    for target, old in zip(targets, before, strict=True):
        assert set(closed.refused(target) - old) <= _DOORS
    assert closed.status().weights_version < fuzz_arena.FAKE_VERSION


def test_enrolling_at_a_closed_host(closed: Arena) -> None:
    volley = closed.fire(_NAMED["enrol"], 300, random.Random(7), ("stranger",))
    assert volley.refused.total() >= volley.sure > 75
    assert set(volley.refused) <= set(m.REFUSALS)
    assert (volley.crashes, volley.lost) == (0, 0)
    closed.unharmed()
