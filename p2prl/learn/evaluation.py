"""Playing greedily, to see what a policy is worth: all at once, or so many ticks at a time beside other work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.blame import FAULTS
from p2prl.core.spaces import EnvSpec, leaves
from p2prl.learn.acted import check_act, started
from p2prl.learn.contracts import Actor, Array, State, Tree
from p2prl.learn.environments import MakeEnv, NotFinite, check_shapes, failure, slot_seed, write, writers_of
from p2prl.learn.space_watch import SpaceWatch
from p2prl.learn.spaces import for_env, join

#: Takes an episode's index and one rendered frame, uint8 `[height, width, 3]`.
TakeFrame = Callable[[int, Array], None]
#: Takes an episode's index, return and length, as soon as it is over.
TakeResult = Callable[[int, float, int], None]

_SLOTS_AT_ONCE = 16
#: Apart from what players' seeds are drawn from (nodes/player.py): no episode is one that was trained on.
_DOMAIN = int.from_bytes(b"eval", "big")


def episode_seed(seed: int, episode: int) -> int:
    """What `reset(seed=)` of this episode of an evaluation is given: 31 bits."""
    return slot_seed(seed, episode)


def run_evaluation_seed(run_seed: int) -> int:
    """The evaluation's seed for a run with this seed: the same for each version of its weights."""
    return int(np.random.SeedSequence((run_seed, _DOMAIN)).generate_state(1)[0])


def evaluate(
    make_env: MakeEnv,
    spec: EnvSpec,
    actor: Actor,
    episodes: int,
    seed: int,
    frames: TakeFrame | None = None,
    took: TakeResult | None = None,
    stepped: Callable[[], object] | None = None,
    slots: int = _SLOTS_AT_ONCE,
    warn: Callable[[str], object] | None = None,
) -> list[tuple[float, int]]:
    """Play greedily, several episodes at a time.

    Args:
        episodes: how many; each has its own seed, so the same `seed` gives the same list.
        frames: takes each rendered frame. Needs environments made with `render_mode="rgb_array"`, which then play one
            episode after the other.
        took: takes each episode's result.
        stepped: called after each step of an environment, when its episode's result was taken.
        slots: episodes at a time.
        warn: takes what is to be said of an environment that leaves its reward range.

    Returns:
        (return, length) per episode, in order.

    Raises:
        EnvironmentFailed: an environment raised, or gave a reward that is not finite.
    """
    envs: list[gym.Env[Any, Any]] = []
    try:
        envs.extend(make_env() for _ in range(1 if frames else max(1, min(episodes, slots))))
        evaluation = Evaluation(
            envs, spec, actor, range(episodes), seed, frames=frames, took=took, stepped=stepped
        )
        while evaluation.advance():
            pass
        if warn is not None:
            for text in evaluation.warnings:
                warn(text)
        return evaluation.results()
    finally:
        for env in envs:
            env.close()


class Evaluation:
    """Greedy episodes, one tick of all its environments at each call of `advance`.

    Args:
        envs: played in; they stay the caller's. More of them than there are episodes are left alone.
        episodes: numbers of the episodes to play; a number and `seed` make the episode's own seed.
        max_length: an episode that has lasted so many steps counts as ended there; 0 for no limit.

    Attributes:
        steps: environment steps so far.
        over: all episodes were played.
        warnings: a line where a reward was outside the declared range. As in play it counts as the nearest inside, so
            that both scores are of the same task (space_watch.py).

    Raises:
        EnvironmentFailed: from here and from `advance`: an environment raised, or gave a reward that is not finite.
    """

    def __init__(
        self,
        envs: Sequence[gym.Env[Any, Any]],
        spec: EnvSpec,
        actor: Actor,
        episodes: Sequence[int],
        seed: int,
        *,
        max_length: int = 0,
        frames: TakeFrame | None = None,
        took: TakeResult | None = None,
        stepped: Callable[[], object] | None = None,
    ) -> None:
        self.steps, self.over = 0, False
        self._spec, self._actor, self._watch = spec, actor, SpaceWatch(spec)
        self.warnings = self._watch.warnings
        self._episodes, self._waiting = list(episodes), iter(list(episodes))
        self._results: dict[int, tuple[float, int]] = {}
        self._took, self._stepped, self._max_length = took, stepped, max_length
        envs = envs[: len(self._episodes)]
        self._lanes = [_Lane(env, spec, slot, seed, frames, self._watch) for slot, env in enumerate(envs)]
        self._rows = {
            name: np.zeros((len(envs), *leaf.shape), leaf.dtype)
            for name, leaf in leaves(spec.observation, "obs")
        }
        self._writers = [(self._rows[name], read) for name, read in writers_of(spec.observation, "obs")]
        self._state = started(actor, len(envs))
        self._act = self._first_act
        self._start = {name: values.copy() for name, values in self._state.items()}
        self._to_env = for_env(envs[0].action_space)
        for lane in self._lanes:
            write(self._writers, lane.slot, lane.begin(next(self._waiting)))

    def advance(self) -> bool:
        """One step of each episode under way; False when all are over."""
        if self.over:
            return False
        obs = join(self._spec.observation, "obs", self._rows)
        actions, self._state, _ = self._act(obs, self._state, None)
        native = self._to_env(actions)
        for lane in self._playing():
            seen = lane.step(native[lane.slot])
            self.steps += 1
            if lane.over or lane.length == self._max_length:
                seen = self._turn(lane)
            if seen is not None:
                self._note(lane.slot, seen)
            if self._stepped is not None:
                self._stepped()
        self.over = not any(self._playing())
        return not self.over

    def results(self) -> list[tuple[float, int]]:
        """(return, length) of the episodes that are over, in their order."""
        return [self._results[episode] for episode in self._episodes if episode in self._results]

    def _first_act(self, obs: Tree, state: State, explore: None) -> tuple[Tree, State, Mapping[str, Array]]:
        """An act whose answer is looked at; those that follow are not."""
        answer = self._actor.act(obs, state, explore)
        check_act(answer, self._spec, self._start, len(self._lanes))
        self._act = self._actor.act
        return answer

    def _note(self, slot: int, seen: Any) -> None:
        try:
            write(self._writers, slot, seen)
        except FAULTS as error:
            raise failure(self._spec.id, slot, "step", error) from error

    def _playing(self) -> Iterator[_Lane]:
        return (lane for lane in self._lanes if lane.episode is not None)

    def _turn(self, lane: _Lane) -> Any:
        """An episode is over; the first observation of the next one in its place, if there is one."""
        assert lane.episode is not None
        self._results[lane.episode] = (lane.total, lane.length)
        if self._took is not None:
            self._took(lane.episode, lane.total, lane.length)
        _put_back(self._state, self._start, lane.slot)
        return lane.begin(next(self._waiting, None))


class _Lane:
    """One slot of an evaluation; `episode` is None when there is nothing left for it to play."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        spec: EnvSpec,
        slot: int,
        seed: int,
        frames: TakeFrame | None,
        watch: SpaceWatch,
    ) -> None:
        self.env, self.slot = env, slot
        self.episode: int | None = None
        self.total, self.length, self.over = 0.0, 0, False
        self._spec, self._seed, self._frames, self._watch = spec, seed, frames, watch
        self._checked = False

    def begin(self, episode: int | None) -> Any:
        self.episode, self.total, self.length, self.over = episode, 0.0, 0, False
        if episode is None:
            return None
        try:
            obs, _ = self.env.reset(seed=episode_seed(self._seed, episode))
            self._show()
        except FAULTS as error:
            raise failure(self._spec.id, self.slot, "reset", error) from error
        if not self._checked:
            check_shapes(self._spec, obs, self.slot)
            self._checked = True
        return obs

    def step(self, action: Any) -> Any:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            self._show()
            value = float(reward)
            if not math.isfinite(value):
                raise NotFinite(f"the reward {reward}")
            if not self._watch.low <= value <= self._watch.high:
                value = self._watch.reward(value)
        except FAULTS as error:
            raise failure(self._spec.id, self.slot, "step", error) from error
        self.total += value
        self.length += 1
        self.over = bool(terminated or truncated)
        return obs

    def _show(self) -> None:
        if self._frames is not None and self.episode is not None:
            self._frames(self.episode, np.asarray(self.env.render()))


def _put_back(state: State, start: State, slot: int) -> None:
    for name, rows in state.items():
        rows[slot] = start[name][slot]
