"""learn/film.py: pictures that are kept once while they are played, beside the same environments played as they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, OrderEnforcing, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import LocalProtocolError
from p2prl.learn.contracts import Array, Explore
from p2prl.learn.environments import bare_step
from p2prl.learn.evaluation import evaluate
from p2prl.learn.film import stacked
from p2prl.learn.playing import Bundle
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import env_spec, session_schema
from p2prl.registry import EnvFactory
from p2prl.wire.bundle import decode_bundle, encode_bundle
from p2prl.wire.columns import CODECS

SIDE = 24
Make = Callable[[], gym.Env[Any, Any]]


class Screen(gym.Env[Any, Any]):
    """Pictures of noise, each its own; episodes of any length. With `trouble` some steps raise, give a reward that is
    none, or a picture of another shape; some resets raise."""

    def __init__(self, number: int = 0, trouble: float = 0.0, high: int = 255) -> None:
        self.observation_space = gym.spaces.Box(0, high, (SIDE, SIDE), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self._rng, self._trouble = np.random.default_rng(number), trouble
        #: How often it can be reset before that may fail: a rollout does not begin with what does.
        self._sound = 1 if number < 4 else 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self._sound -= 1
        if self._sound < 0 and self._rng.random() < self._trouble / 2:
            raise OSError("no screen")
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        drawn, kind = self._rng.random(), self._rng.integers(3)
        obs, reward = self._picture(), 1.0
        if drawn < self._trouble:
            if kind == 0:
                raise RuntimeError("the screen is dark")
            obs, reward = (obs, float("nan")) if kind == 1 else (obs[:1], 1.0)
        return obs, reward, bool(self._rng.random() < 0.1), bool(self._rng.random() < 0.05), {}

    def _picture(self) -> Array:
        return self._rng.integers(256, size=(SIDE, SIDE), dtype=np.uint8)


class AsItIs(FrameStackObservation[Any, Any, Any]):
    """The same, of a type that nobody steps past."""


class Keeper:
    """Keeps all that it is shown, and then spoils it."""

    annealing = False

    def __init__(self, spoils: bool = False) -> None:
        self.seen: list[Array] = []
        self.copies: list[Array] = []
        self._spoils = spoils

    def load(self, weights: Mapping[str, Array]) -> None:
        pass

    def start(self, slots: int) -> dict[str, Array]:
        return {}

    def act(self, obs: Any, state: Any, explore: Explore | None) -> tuple[Any, Any, dict[str, Array]]:
        self.seen.append(obs)
        self.copies.append(obs.copy())
        if self._spoils:
            obs[:] = 7
        return np.ones(len(obs), np.int64), state, {}


def roll(
    make: Make, *, ticks: int = 6, slots: int = 3, actor: Any = None, observations: bool = True
) -> Rollout:
    spec = env_spec(make(), "screen")
    schema = session_schema(spec, {}, ticks, observations=observations)
    return Rollout(make, spec, schema, actor or Keeper(), slots=slots, ladder=1, rank=0, seed=1)


def encoded(rollout: Rollout, bundle: Bundle, codecs: tuple[str, ...] = CODECS) -> tuple[Any, bytes]:
    return encode_bundle(
        rollout._schema,
        bundle.packable,
        slots=rollout._slots,
        version=0,
        rank=0,
        serial=1,
        steps=bundle.steps,
        episodes=bundle.episodes,
        codecs=codecs,
    )


def making(wrapper: Any, stack: int, padding: Any, trouble: float, limit: int, once: int) -> Make:
    """The first `once` environments are of the type `wrapper`, all later ones AsItIs. `roll` asks one its spaces."""
    made = itertools.count()

    def make() -> gym.Env[Any, Any]:
        number = next(made)
        kind = wrapper if number < once else AsItIs
        inside: gym.Env[Any, Any] = OrderEnforcing(Screen(number, trouble))
        if limit % 2:
            inside = TimeLimit(inside, limit)
        env: gym.Env[Any, Any] = kind(inside, stack, padding_type=padding)
        return env if limit % 2 else TimeLimit(env, limit)

    return make


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_bundles_are_those_of_the_wrapper_itself(data: st.DataObject) -> None:
    """Byte by byte, as they are sent; whatever pads a stack, ends an episode or fails."""
    stack, ticks = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 9))
    padding = data.draw(st.sampled_from(["reset", "zero", np.full((SIDE, SIDE), 9, np.uint8)]))
    trouble, limit = data.draw(st.sampled_from([0.0, 0.2])), data.draw(st.integers(2, 12))
    once = data.draw(st.sampled_from([4, 6, 10**6]))
    ours, theirs = (
        roll(making(wrapper, stack, padding, trouble, limit, once), ticks=ticks)
        for wrapper in (FrameStackObservation, AsItIs)
    )
    for _ in range(5):
        one, other = ours.collect(), theirs.collect()
        assert set(one.stacks) == {"obs"}
        assert not other.stacks
        assert np.array_equal(one.stacks["obs"].array(), other.columns["obs"])
        header, payload = encoded(ours, one)
        found, as_found = encoded(theirs, other)
        # Stacks of which the first rows are broken look like none, and rows of an AsItIs are always whole.
        if header.codecs == found.codecs and once > 6:
            assert payload == as_found
        assert (one.steps, sorted(one.episodes)) == (other.steps, sorted(other.episodes))
        decoded = decode_bundle(ours._schema, header, payload)
        for name, column in other.columns.items():
            assert np.array_equal(decoded[name], column), name
        plain = decode_bundle(ours._schema, *encoded(ours, one, ("raw", "lz4")))
        assert np.array_equal(plain["obs"], other.columns["obs"])
    assert ours.failures == theirs.failures


def test_each_picture_is_kept_once_and_the_wrapper_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made = itertools.count()
    rollout = roll(lambda: FrameStackObservation(TimeLimit(Still(next(made)), 4), 4), ticks=9, slots=2)

    def step(self: Any, action: Any) -> Any:
        raise AssertionError("the wrapper was asked")

    monkeypatch.setattr(FrameStackObservation, "step", step)
    for bundle, begun in ((rollout.collect(), 1), (rollout.collect(), 2)):
        assert rollout.failures == 0
        assert [len(kept) for kept in bundle.stacks["obs"].kept] == [4 + 9 + 3 * begun] * 2


class Still(Screen):
    """Its episodes have no end of their own."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._picture(), 1.0, False, False, {}


def test_what_an_actor_was_shown_is_its_own() -> None:
    """It may keep and change it, once the watch for slots that play alike needs no arrays any more."""
    made = itertools.count()
    actor = Keeper(spoils=True)
    rollout = roll(lambda: FrameStackObservation(Still(next(made)), 4), actor=actor)
    while not rollout._watch.done:
        rollout.collect()
    actor.seen.clear()
    actor.copies.clear()
    bundle = rollout.collect()
    assert np.array_equal(bundle.stacks["obs"].array()[:-1], np.stack(actor.copies))
    assert all((obs == 7).all() for obs in actor.seen)
    assert len({obs.ctypes.data for obs in actor.seen}) == len(actor.seen)


def test_pictures_that_are_not_sent_or_still_looked_at_are_played_as_they_are() -> None:
    made = itertools.count()
    blind = roll(lambda: FrameStackObservation(Screen(next(made)), 4), observations=False).collect()
    assert "obs" not in blind.packable
    bounded = roll(lambda: FrameStackObservation(Screen(next(made), high=200), 4))
    assert "obs" in bounded.collect().columns
    assert "its space says 0 to 200" in bounded.warnings[0]


def test_stacks_of_another_shape_than_the_schema_says_are_not_sent() -> None:
    made = itertools.count()
    longer, shorter = (
        roll(lambda: FrameStackObservation(Screen(next(made)), 4), ticks=ticks) for ticks in (7, 6)
    )
    bundle = shorter.collect()
    other = Bundle(longer.collect().columns, bundle.stacks, bundle.steps, bundle.episodes)
    with pytest.raises(
        LocalProtocolError, match=r"column 'obs' is uint8\[7, 3, 4, 24, 24\], not uint8\[8, 3"
    ):
        encoded(longer, other)


class OneArray(gym.Env[Any, Any]):
    """Each picture is written into the array that was given before. It is `high` at most."""

    def __init__(self, high: int = 255) -> None:
        self.observation_space = gym.spaces.Box(0, high, (SIDE, SIDE), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self._picture = np.zeros((SIDE, SIDE), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self._picture[:] = 1
        return self._picture, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._picture += 1
        return self._picture, 1.0, bool(self._picture[0, 0] == 8), False, {}


@pytest.mark.parametrize("high", [255, 200], ids=["kept once", "played as they are"])
def test_pictures_that_are_written_into_one_array_are_seen_alike_in_play_and_evaluation(high: int) -> None:
    make = EnvFactory(
        "one-array", OneArray, lambda: TimeLimit(FrameStackObservation(OneArray(high), 3), 99), {}
    )
    player, greedy = Keeper(), Keeper()
    roll(make, ticks=6, slots=1, actor=player).collect()
    assert evaluate(make, env_spec(make(), "screen"), greedy, 1, 0) == [(7.0, 7)]
    due = [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]
    for actor in (player, greedy):
        assert [obs[0, :, 0, 0].tolist() for obs in actor.copies[:6]] == due


def test_who_steps_past_a_stack_copies_nothing() -> None:
    screen = Screen()
    made = EnvFactory("screen", Screen, lambda: TimeLimit(FrameStackObservation(screen, 4), 5), {})()
    assert bare_step(made, past_stack=True) == (screen.step, 5)
    assert stacked(made) == 4
    again = EnvFactory("screen", Screen, lambda: made, {})()
    assert str(again).count("OwnFrames") == 1


def test_only_the_outermost_stack_is_stepped_past() -> None:
    screen = Screen()
    one = FrameStackObservation(screen, 4)
    two = FrameStackObservation(one, 3)
    assert [stacked(env) for env in (screen, one, TimeLimit(OrderEnforcing(two), 5), AsItIs(one, 2))] == [
        0,
        4,
        3,
        0,
    ]
    assert bare_step(TimeLimit(one, 5)) == (one.step, 5)
    assert bare_step(TimeLimit(FrameStackObservation(TimeLimit(screen, 4), 2), 5), past_stack=True) == (
        screen.step,
        4,
    )
    assert bare_step(two, past_stack=True)[0] == one.step
