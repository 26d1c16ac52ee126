"""What all who step environments share: how an observation is laid out, how a slot is seeded, how a failure is told."""

from __future__ import annotations

import contextlib
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from p2prl.blame import FAULTS, raised
from p2prl.core.spaces import EnvSpec, Leaf, Space, leaves
from p2prl.errors import P2prlError, UsageError
from p2prl.learn.contracts import Array, Tree
from p2prl.learn.film import OwnFrames
from p2prl.learn.spaces import env_spec, split

MakeEnv = Callable[[], "gym.Env[Any, Any]"]
#: A leaf's name, and how to read it out of one observation.
Writer = tuple[str, Callable[[Any], Any]]


_TRIES = 3
#: A try that takes longer is told of.
SLOW_S = 2.0
#: What Gymnasium says of each.
_FORMS = {
    "reset": "reset() must give (observation, info)",
    "step": "step() must give (observation, reward, terminated, truncated, info)",
}


class EnvironmentFailed(P2prlError):
    """An environment raised, or answered with something outside its own spaces' shapes.

    Attributes:
        slot: which slot of the player; None for all of them, where they are one environment.
    """

    def __init__(self, message: str, slot: int | None) -> None:
        super().__init__(message)
        self.slot = slot


class NotFinite(ValueError):
    """An environment gave NaN or infinity where a number belongs; the text says where and which."""


class WrongAnswer(ValueError):
    """`reset` or `step` gave something of another form than Gymnasium says; the text says what it must be."""


class BrokenEnvironment(UsageError):
    """An environment's first answers are not of the form that they must have: another try would not help."""


def slot_seed(seed: int, slot: int, failures: int = 0) -> int:
    """A seed for `reset(seed=)`: 31 bits, because that is what the pickiest generators take.

    Args:
        failures: environments that failed so far, so that a slot does not run into the same failure again.
    """
    key = (slot, failures) if failures else (slot,)
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint32)
    return int(state[0]) >> 1


def writers_of(space: Space, prefix: str) -> list[Writer]:
    """Each leaf's name, and how to read it out of one observation."""
    paths = [(name, name[len(prefix) + 1 :]) for name, _ in leaves(space, prefix)]
    return [(name, _reader(space, path.split(".") if path else [])) for name, path in paths]


def _reader(space: Space, path: Sequence[str]) -> Callable[[Any], Any]:
    if isinstance(space, Leaf):
        return lambda obs: obs
    key: Any = path[0] if isinstance(space.items, dict) else int(path[0])
    inner = _reader(space.items[key], path[1:])
    return lambda obs: inner(obs[key])


def write(rows: Sequence[tuple[Array, Callable[[Any], Any]]], slot: int, obs: Any) -> None:
    """Put an observation into row `slot` of each leaf's array `[slots, ...]`."""
    for row, read in rows:
        row[slot] = read(obs)


def check_shapes(spec: EnvSpec, obs: Tree, slot: int) -> None:
    """Once per environment: a wrong shape would else be broadcast in silence. Raises EnvironmentFailed."""
    try:
        shapes = {name: np.shape(part) for name, part in split(spec.observation, "obs", obs).items()}
    except (KeyError, IndexError, TypeError) as error:
        raise failure(spec.id, slot, "reset", error) from error
    for name, leaf in leaves(spec.observation, "obs"):
        if shapes[name] != leaf.shape:
            text = f"{spec.id}: slot {slot}: reset gave {name} the shape {shapes[name]}, its space says {leaf.shape}"
            raise EnvironmentFailed(text, slot)


def check_finite(name: str, values: Array) -> None:
    """Raises NotFinite if an observation's leaf holds NaN or infinity."""
    bad = ~np.isfinite(values)
    if bad.any():
        index = ", ".join(map(str, np.argwhere(bad)[0]))
        raise NotFinite(f"{name}{f'[{index}]' if index else ''} = {float(values[bad].flat[0])}")


def bare_step(env: gym.Env[Any, Any], past_stack: bool = False) -> tuple[Callable[[Any], Any], float]:
    """What `env.step` comes to without the outermost of Gymnasium's wrappers that only count steps, or only ask whether
    there was a reset before; and the number of steps at which an episode is then to be truncated (infinity: none).

    Args:
        past_stack: without the first FrameStackObservation as well.
    """
    limit = math.inf
    while True:
        if past_stack and type(env) is gym.wrappers.FrameStackObservation:
            env, past_stack = env.env, False
            env = env.env if type(env) is OwnFrames else env
        # The name is Gymnasium's own: a wrapper that does not have it keeps its limit itself.
        own = getattr(env, "_max_episode_steps", None) if type(env) is gym.wrappers.TimeLimit else None
        if type(env) is not gym.wrappers.OrderEnforcing and not isinstance(own, int):
            return env.step, limit
        limit = min(limit, math.inf if own is None else own)
        env = env.env  # type: ignore[attr-defined]


def check_reset(answer: Any) -> None:
    """Raises WrongAnswer unless this is what `reset()` has to give."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
        raise WrongAnswer(f"{_FORMS['reset']}, gave {_given(answer)}")


def check_step(answer: Any) -> None:
    """Raises WrongAnswer unless this is what `step()` has to give."""
    if not isinstance(answer, tuple) or len(answer) != 5 or not isinstance(answer[4], dict):
        raise WrongAnswer(f"{_FORMS['step']}, gave {_given(answer)}")
    try:
        float(answer[1])
    except (TypeError, ValueError) as error:
        raise WrongAnswer(f"{_FORMS['step']}, gave the reward {answer[1]!r}") from error


def _given(answer: Any) -> str:
    if not isinstance(answer, tuple):
        return f"one value, of the type {type(answer).__name__}"
    if len(answer) in (2, 5) and not isinstance(answer[-1], dict):
        return f"an info of the type {type(answer[-1]).__name__}, not dict"
    return f"{len(answer)} values"


def try_environment(make_env: MakeEnv, env_id: str, tell: Callable[[str], None]) -> EnvSpec:
    """Make an environment, reset it and make one step with an action of its space; its description.

    One that raises is tried again, with a new one: that may pass, and does where it fails now and then.

    Args:
        tell: is called once, on another thread, if this takes long: else it would look as if nothing was done.

    Raises:
        UsageError: its spaces cannot be stored, or an answer is not of Gymnasium's form; the text says what is wrong.
        EnvironmentFailed: it raised each time.
        MissingPackage: it needs a package that is not installed.
    """
    with _told_if_slow(f"trying one step of {env_id} …", tell):
        for seed in range(_TRIES - 1):
            with contextlib.suppress(EnvironmentFailed):
                return _try_once(make_env, env_id, seed)
        return _try_once(make_env, env_id, _TRIES - 1)


@contextlib.contextmanager
def _told_if_slow(text: str, tell: Callable[[str], None]) -> Iterator[None]:
    timer = threading.Timer(SLOW_S, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _try_once(make_env: MakeEnv, env_id: str, seed: int) -> EnvSpec:
    try:
        env = make_env()
    except P2prlError:
        raise
    except FAULTS as error:
        raise EnvironmentFailed(f"{env_id} cannot be made: {raised(error)}", 0) from error
    try:
        spec = env_spec(env, env_id)
        _try_one_step(env, spec, seed)
        return spec
    finally:
        with contextlib.suppress(*FAULTS):  # it may be broken: what it says on closing is no news
            env.close()


def _try_one_step(env: gym.Env[Any, Any], spec: EnvSpec, seed: int) -> None:
    where = "reset"
    try:
        answer = env.reset(seed=seed)
        check_reset(answer)
        check_shapes(spec, answer[0], 0)
        env.action_space.seed(seed)
        where = "step"
        check_step(env.step(env.action_space.sample()))
    except WrongAnswer as error:
        raise BrokenEnvironment(f"{spec.id}: {error}") from error
    except EnvironmentFailed as error:
        raise BrokenEnvironment(str(error)) from error
    except FAULTS as error:
        raise EnvironmentFailed(f"{spec.id}: {where} raised {raised(error)}", 0) from error


def failure(env_id: str, slot: int | None, where: str, error: BaseException) -> EnvironmentFailed:
    """One line about what an environment raised in `reset` or `step`; `error` is its cause.

    Args:
        slot: None for all of them.
    """
    text = " ".join(str(error).split())
    if isinstance(error, WrongAnswer):
        told = text
    elif isinstance(error, NotFinite):
        told = f"{where} gave {text}"
    elif not _is_ours(error):
        told = f"{where} raised {type(error).__name__}: {text}"
    elif "unpack" in text:
        told = f"{_FORMS[where]}, and did not ({text})"
    else:
        told = f"{where} gave what does not fit: {text}"
    who = env_id if slot is None else f"{env_id}: slot {slot}"
    failed = EnvironmentFailed(f"{who}: {told}", slot)
    failed.__cause__ = error
    return failed


def _is_ours(error: BaseException) -> bool:
    """True if not the environment raised, but what was done here with its answer."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent == Path(__file__).parent
