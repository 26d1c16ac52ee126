"""Which environments are stepped all together: those of which Gymnasium knows a vector environment that is the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.vector import AutoresetMode

from p2prl.blame import FAULTS
from p2prl.core.spaces import EnvSpec
from p2prl.errors import UsageError
from p2prl.learn.spaces import plain_space

log = logging.getLogger("p2prl")

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
MakeVectorEnv = Callable[[], VectorEnv]
#: With fewer slots one by one is faster: one step of Gymnasium's CartPole for all of them costs as much as six apart.
_FEWEST = 8


def vector_maker(
    registered: GymSpec, args: Mapping[str, Any], spec: EnvSpec, slots: int
) -> MakeVectorEnv | None:
    """What makes a vector environment of `slots` of a registered environment, or None if they are to be stepped one by
    one.

    It must be one of its own kind (`vector_entry_point`) with the autoreset mode NEXT_STEP, and have the spaces and the
    time limit of the single environment. One is made here, to see that.

    Args:
        args: the environment's arguments.
        spec: of the single environment, made with them.
    """
    if registered.vector_entry_point is None or slots < _FEWEST or args.get("render_mode") is not None:
        return None

    def make() -> VectorEnv:
        return gym.make_vec(registered, slots, vectorization_mode="vector_entry_point", **args)

    try:
        env = make()
    except FAULTS as error:  # one by one they may well be made
        difference = f"{type(error).__name__}: {error}"
    else:
        difference = _difference(env, spec)
        env.close()
    if difference:
        log.debug("%s is stepped one by one: its vector environment: %s", spec.id, difference)
        return None
    return make


def _difference(env: VectorEnv, spec: EnvSpec) -> str:
    """In what a vector environment is not what `spec` says of the single one; empty if it is the same."""
    mode = env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.NEXT_STEP:
        return f"its autoreset mode is {mode}"
    try:
        observation = plain_space(env.single_observation_space, "obs", spec.id)
        action = plain_space(env.single_action_space, "action", spec.id)
    except UsageError as error:
        return str(error)
    if (observation, action) != (spec.observation, spec.action):
        return "it has other spaces"
    limit = _time_limit(env)
    return "" if limit == spec.max_episode_steps else f"it ends episodes after {limit} steps"


def _time_limit(env: VectorEnv) -> Any:
    """What it says itself, else what it was made with."""
    made_with = env.spec.kwargs.get("max_episode_steps") if env.spec is not None else None
    return getattr(env.unwrapped, "max_episode_steps", made_with)
