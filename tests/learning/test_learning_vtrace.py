"""V-trace learns: CartPole to the criterion on several seeds; with a memory, also where velocities are hidden."""

from __future__ import annotations

import gymnasium as gym
import msgspec
import pytest
from p2prl_envs.masked import make_cartpole_masked

from p2prl.learn.spaces import env_spec
from p2prl.settings import find_experiment
from tests.learning.bare import Bare

pytest.importorskip("torch")

from p2prl_agents.vtrace import VTrace, VTraceSettings


def make_cartpole() -> gym.Env:
    return gym.make("CartPole-v1")


SPEC = env_spec(make_cartpole(), "CartPole-v1")
MASKED = env_spec(make_cartpole_masked(), "cartpole-masked")


#: What the presets say.
SETTINGS = msgspec.convert(find_experiment("cartpole-vtrace").agent.settings, VTraceSettings)
MEMORY = find_experiment("cartpole-masked").agent.settings


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_vtrace_solves_cartpole(seed: int) -> None:
    bare = Bare(VTrace(SPEC, SETTINGS), make_cartpole, SPEC, slots=SETTINGS.batch, seed=seed)
    progress = bare.run(475.0, max_updates=10**9, max_steps=300_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    assert set(progress.lags) == {0.0}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_vtrace_solves_cartpole_with_weights_that_were_rounded_and_sent_as_changes(seed: int) -> None:
    """Within the steps of the exact ones."""
    bare = Bare(VTrace(SPEC, SETTINGS), make_cartpole, SPEC, slots=SETTINGS.batch, seed=seed, wire=True)
    progress = bare.run(475.0, max_updates=10**9, max_steps=300_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    assert bare.rounded == bare.version + 1
    assert 0.9 * bare.version < bare.changes < bare.version


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_vtrace_solves_cartpole_from_sessions_that_are_twenty_versions_old(seed: int) -> None:
    bare = Bare(VTrace(SPEC, SETTINGS), make_cartpole, SPEC, slots=SETTINGS.batch, seed=seed, lag=20)
    progress = bare.run(475.0, max_updates=10**9, max_steps=400_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"
    assert set(progress.lags[20:]) == {20.0}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_vtrace_with_a_memory_solves_cartpole_without_velocities(seed: int) -> None:
    settings = msgspec.convert(MEMORY, VTraceSettings)
    bare = Bare(VTrace(MASKED, settings), make_cartpole_masked, MASKED, slots=settings.batch, seed=seed)
    progress = bare.run(475.0, max_updates=10**9, max_steps=400_000)
    assert progress.solved_at is not None, f"mean return {progress.mean} after {progress.steps} steps"


def test_vtrace_without_a_memory_does_not() -> None:
    """The same settings; the best that one look allows is far from balance."""
    settings = msgspec.convert({**MEMORY, "core": "none"}, VTraceSettings)
    bare = Bare(VTrace(MASKED, settings), make_cartpole_masked, MASKED, slots=settings.batch, seed=1)
    progress = bare.run(475.0, max_updates=10**9, max_steps=160_000)
    assert max(mean for _, mean in progress.curve) < 150
