"""Environments that cannot be paused: the world ticks on the wall clock whether or not anyone acts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym

#: Of a tick: an action this late still counts for the tick that just passed. Slots of one player are stepped one after
#: the other, and a process is never woken to the microsecond.
GRACE = 0.5


class RealTime(gym.Wrapper[Any, Any, Any, Any]):
    """Gives an environment a clock.

    The world ticks at whole multiples of `tick_s` of the clock, so that all slots of a process tick together. `step`
    waits for the next tick if it comes early. If it comes late, the ticks that it missed are played first, with the
    action before (or `idle_action`), and their rewards are added up; if the episode ends among them, the new action is
    not played. Threads are not needed: what the world would have done meanwhile is worked out when one asks.

    `info["missed_ticks"]` counts the missed ticks of this step, `info["skipped_ticks"]` those beyond `max_missed`,
    for which the world stood still (a laptop that slept).
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        tick_s: float,
        *,
        idle_action: Any = None,
        max_missed: int = 1000,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock` gives seconds, `wait` waits for some; tests give both. `idle_action` None repeats the last action."""
        super().__init__(env)
        if not tick_s > 0:
            raise ValueError("tick_s must be positive")
        self.tick_s = tick_s
        self._idle_action, self._max_missed = idle_action, max_missed
        self._clock, self._wait = clock, wait
        self._last_tick = 0
        self._last_action: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; its world ticks from now on."""
        answer = self.env.reset(seed=seed, options=options)
        self._last_tick = math.floor(self._clock() / self.tick_s)
        self._last_action = self._idle_action
        return answer

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play the missed ticks, wait for the next one, play it with `action`."""
        late = math.ceil(self._clock() / self.tick_s - GRACE) - (self._last_tick + 1)
        missed = min(max(0, late), self._max_missed)
        skipped = max(0, late) - missed
        meanwhile = action if self._last_action is None else self._last_action
        self._last_action = action if self._idle_action is None else self._idle_action
        self._last_tick += skipped
        total = 0.0
        for played in range(missed):
            obs, reward, terminated, truncated, info = self._tick(meanwhile)
            total += float(reward)
            if terminated or truncated:
                return obs, total, terminated, truncated, _noted(info, played + 1, skipped)
        obs, reward, terminated, truncated, info = self._tick(action)
        return obs, total + float(reward), terminated, truncated, _noted(info, missed, skipped)

    def _tick(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._last_tick += 1
        early_s = self._last_tick * self.tick_s - self._clock()
        if early_s > 0:
            self._wait(early_s)
        return self.env.step(action)


def _noted(info: dict[str, Any], missed: int, skipped: int) -> dict[str, Any]:
    return {**info, "missed_ticks": missed, "skipped_ticks": skipped}


def make_realtime(
    env: str = "CartPole-v1",
    tick_s: float = 0.01,
    render_mode: str | None = None,
    **args: Any,
) -> gym.Env[Any, Any]:
    """Any Gymnasium id on the wall clock, `tick_s` seconds a tick; other arguments are the inner environment's."""
    return RealTime(gym.make(env, render_mode=render_mode, **args), tick_s)


# So that a host warns of play.when_full=wait.
vars(make_realtime)["wall_clock"] = True
