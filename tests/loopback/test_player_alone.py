"""A real player at a real socket, without a member that has room for what it plays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from p2prl.core import messages as m
from p2prl.core.spaces import EnvSpec
from p2prl.learn import environments
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network, Socket
from p2prl.nodes.player import Player
from p2prl.nodes.prepare import prepare
from p2prl.nodes.wiring import PlayerConfig
from p2prl.registry import make_agent, resolve_agent
from p2prl.settings import find_experiment, overlay
from p2prl.wire import frames
from p2prl.wire.weights import CODEC, encode_weights


class Member:
    """The other end of a player's socket. It takes bundles, and gives room when it is told to."""

    def __init__(self, network: Network, loop: Loop) -> None:
        self.socket: Socket = network.server("router", ["tcp://127.0.0.1:*"], None, Limits())
        self.serials: list[int] = []
        self.dropped = 0
        self.told: list[int] = []
        self._player = b""
        loop.on_readable(self.socket, self._hear)

    def _hear(self) -> None:
        while (received := self.socket.receive()) is not None:
            self._player = received.peer
            message = frames.decode_from_player(received.frames[0])
            if isinstance(message, m.PlayerBundle):
                self.serials.append(message.serial)
            elif isinstance(message, m.PlayerDropped):
                self.dropped += message.bundles
            elif isinstance(message, m.PlayerProgress):
                self.told.append(message.steps)

    @property
    def met(self) -> bool:
        return bool(self._player)

    def say(self, message: m.Message, *bulk: bytes) -> None:
        assert self.socket.send([frames.encode(message), *bulk], self._player)


@pytest.mark.parametrize(("preset", "sent", "kept"), [("a2c", 1, 1), ("cartpole", 2, 4)])
def test_a_player_that_may_not_wait_keeps_the_newest(
    tmp_path: Path, preset: str, sent: int, kept: int
) -> None:
    """Of an on-policy agent one alone: older ones would be learned from before it. Of others some."""
    with playing(tmp_path, preset) as (player, member, loop):
        while player.serial < 10:  # all this time it has no room
            assert player._work()
        assert loop.run_on(lambda: len(member.serials) == sent and member.dropped == 10 - sent - kept, 10)
        assert member.serials == list(range(1, sent + 1))
        for number in range(kept):  # each is answered, so there is room for one more
            member.say(m.PlayerCredit(serial=member.serials[-1], credit=1))
            assert loop.run_on(lambda there=sent + number + 1: len(member.serials) == there, 10)
        assert member.serials[sent:] == list(range(11 - kept, 11))


def test_a_player_that_is_asked_to_end_leaves_its_bundle_and_closes_its_environments(tmp_path: Path) -> None:
    with playing(tmp_path, "cartpole") as (player, _, loop):
        assert player._work()
        played = player.rollout._ticks
        loop.stop()
        assert not player._work()
        assert player.serial == 1
        assert player.rollout._ticks == played + 1
        player.close()
        assert player.rollout._envs == []
        loop.run()  # it ends at once


def test_a_player_says_so_while_it_tries_a_slow_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its member shows the text as what the player is at."""
    told: list[tuple[str, str]] = []
    heard, prepared = threading.Event(), threading.Event()
    real_step, real_try = CartPoleEnv.step, environments.try_environment

    def step(self: CartPoleEnv, action: Any) -> Any:
        assert not prepared.is_set() or heard.wait(30), "nothing was said during the step"
        return real_step(self, action)

    def try_now(make_env: environments.MakeEnv, env_id: str, tell: Callable[[str], None]) -> EnvSpec:
        prepared.set()  # the host's own try came before
        return real_try(make_env, env_id, tell)

    def emit(kind: str, text: str) -> None:
        told.append((kind, text))
        heard.set()

    monkeypatch.setattr(CartPoleEnv, "step", step)
    monkeypatch.setattr(environments, "SLOW_S", 0.05)
    monkeypatch.setattr("p2prl.nodes.player.try_environment", try_now)
    monkeypatch.setattr("p2prl.nodes.player.emit", emit)
    with playing(tmp_path, "cartpole"):
        assert told == [("trying", "trying one step of CartPole-v1 …")]


class Clock:
    """Stands, or goes on by `pace_s` each time that it is looked at."""

    def __init__(self) -> None:
        self.now = self.pace_s = 0.0

    def __call__(self) -> float:
        self.now += self.pace_s
        return self.now


def test_a_bundle_that_takes_long_is_told_of_while_it_is_played_and_no_other_is(tmp_path: Path) -> None:
    clock = Clock()
    with playing(tmp_path, "cartpole", clock) as (player, member, loop):
        ticks = player.run.schema.ticks
        assert player._work()  # in no time
        clock.pace_s = 3.0 / ticks
        assert player._work()
        clock.pace_s = 0.0
        assert player._work()
        loop.now = time.monotonic
        assert loop.run_on(lambda: len(member.serials) + len(player.backlog) == 3, 10)
        assert loop.run_on(lambda: len(member.told) > 1, 10)
        begins, first, *others = member.told
        assert begins == 0, "the first bundle is told of as it begins"
        assert 0 < first <= ticks / 2
        assert 1 <= len(others) <= 2, "each second, of about three"
        assert [first, *others] == sorted({first, *others})
        assert others[-1] <= ticks


@contextmanager
def playing(
    folder: Path, preset: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Player, Member, Loop]]:
    """A player with its first weights, its member, and the loop of both."""
    experiment = overlay(find_experiment(preset), ["agent.hidden=[8]"])
    prepared = prepare(experiment, folder / "results", False)
    run = msgspec.structs.replace(prepared.run, when_full="drop_oldest", envs=1)
    loop, network = Loop(), Network()
    member = Member(network, loop)
    config = PlayerConfig(
        run=run, seat=m.Seat(rank=0, seed=1), start=0, slots=1, agent="", endpoint=member.socket.bound
    )
    player = Player(config, loop)
    try:
        player.start()
        assert loop.run_on(lambda: member.met, 10)
        agent = make_agent(resolve_agent(run.agent_name), run.env, run.agent_settings)
        payload = encode_weights(agent.learner("cpu", 1).weights())
        member.say(weights_header(run.run_id, len(payload)), payload)
        assert loop.run_on(lambda: player.version == 0, 10)
        loop.now = clock
        yield player, member, loop
    finally:
        player.close()
        network.close()


def weights_header(run_id: str, size_bytes: int) -> m.WeightsHeader:
    return m.WeightsHeader(
        run_id=run_id, version=0, codec=CODEC, size_bytes=size_bytes, updates=0, candidate=False
    )
