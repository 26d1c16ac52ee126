"""Distributions over actions: frequencies, log-probabilities and entropies against torch's own."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from p2prl_agents.distributions import Actions

from p2prl.core.spaces import EnvSpec
from p2prl.errors import UsageError
from p2prl.learn.spaces import plain_space, split

SPACES: dict[str, gym.Space[Any]] = {
    "discrete": gs.Discrete(3, start=-1),
    "multi": gs.MultiDiscrete([2, 4, 3]),
    "grid": gs.MultiDiscrete([[2, 3], [4, 2]]),
    "binary": gs.MultiBinary(3),
    "box": gs.Box(-0.5, 0.5, (2,), np.float32),
    "dict": gs.Dict(
        {"go": gs.Discrete(3), "how": gs.Box(-1, 1, (2, 2), np.float32), "with": gs.MultiBinary(2)}
    ),
}


def actions_of(space: gym.Space[Any], apart: bool = False) -> tuple[Actions, EnvSpec]:
    plain = EnvSpec("test", plain_space(gs.Discrete(2), "obs", "test"), plain_space(space, "action", "test"))
    return Actions(plain, "tester", apart), plain


@pytest.mark.parametrize("kind", SPACES)
def test_what_was_drawn_is_judged_alike_by_player_and_learner(kind: str) -> None:
    actions, env = actions_of(SPACES[kind])
    rng = np.random.default_rng(1)
    outputs = rng.normal(size=(50, actions.outputs)).astype(np.float32)
    log_std = rng.normal(size=actions.gaussians).astype(np.float32) if actions.gaussians else None
    tree, fields = actions.draw(outputs, log_std, rng)
    batch = {name: values[:, None] for name, values in split(env.action, "action", tree).items()}
    batch |= {name: values[:, None] for name, values in fields.items()} | {
        "flags": np.zeros((50, 1), np.uint8)
    }
    picked, drawn = (torch.from_numpy(part[:, 0]) for part in actions.taken(batch))
    scale = None if log_std is None else torch.from_numpy(log_std)
    log_prob, entropy = actions.judge(torch, torch.from_numpy(outputs), scale, picked, drawn)
    np.testing.assert_allclose(fields["log_prob"], log_prob.numpy(), atol=2e-5)
    theirs_p, theirs_h = by_torch(actions, torch.from_numpy(outputs), scale, picked, drawn)
    torch.testing.assert_close(log_prob, theirs_p, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, theirs_h, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", SPACES)
def test_parts_that_are_kept_apart_multiply_to_the_whole(kind: str) -> None:
    (together, env), (apart, _) = actions_of(SPACES[kind]), actions_of(SPACES[kind], apart=True)
    parts = len(apart.categories) + apart.gaussians
    assert together.fields()["log_prob"].shape == ()
    assert apart.fields()["log_prob"].shape == (parts,)
    outputs = np.random.default_rng(1).normal(size=(50, apart.outputs)).astype(np.float32)
    log_std = np.full(apart.gaussians, -0.3, np.float32) if apart.gaussians else None
    tree, whole = together.draw(outputs, log_std, np.random.default_rng(2))
    same, each = apart.draw(outputs, log_std, np.random.default_rng(2))
    columns = {name: values[:, None] for name, values in split(env.action, "action", tree).items()}
    for name, values in split(env.action, "action", same).items():
        np.testing.assert_array_equal(values[:, None], columns[name])
    assert each["log_prob"].shape == (50, parts)
    np.testing.assert_allclose(each["log_prob"].sum(axis=-1), whole["log_prob"], atol=2e-5)
    batch = columns | {name: values[:, None] for name, values in each.items()}
    picked, drawn = (
        torch.from_numpy(part[:, 0]) for part in apart.taken(batch | {"flags": np.zeros((50, 1), np.uint8)})
    )
    scale = None if log_std is None else torch.from_numpy(log_std)
    log_prob, _ = apart.judge(torch, torch.from_numpy(outputs), scale, picked, drawn)
    np.testing.assert_allclose(each["log_prob"], log_prob.numpy(), atol=2e-5)


def by_torch(actions: Actions, outputs: Any, log_std: Any, picked: Any, drawn: Any) -> tuple[Any, Any]:
    """torch.distributions, part by part."""
    log_prob, entropy, at = torch.zeros(len(outputs)), torch.zeros(len(outputs)), 0
    for part, size in enumerate(actions.categories):
        one = torch.distributions.Categorical(logits=outputs[:, at : at + size])
        log_prob, entropy, at = log_prob + one.log_prob(picked[:, part]), entropy + one.entropy(), at + size
    if log_std is not None:
        bell = torch.distributions.Normal(outputs[:, at:], log_std.exp())
        log_prob, entropy = log_prob + bell.log_prob(drawn).sum(-1), entropy + bell.entropy().sum(-1)
    return log_prob, entropy


@pytest.mark.parametrize("kind", SPACES)
def test_actions_fit_their_space(kind: str) -> None:
    """Drawn and greedy ones; the environment's own space says so."""
    space = SPACES[kind]
    actions, env = actions_of(space)
    rng = np.random.default_rng(2)
    outputs = 3 * rng.normal(size=(40, actions.outputs)).astype(np.float32)
    log_std = np.ones(actions.gaussians, np.float32)
    for source in (rng, None):
        tree, _ = actions.draw(outputs, log_std, source)
        for row in range(40):
            one = {name: values[row] for name, values in split(env.action, "action", tree).items()}
            native: Any = {key[7:]: one[key] for key in one} if isinstance(space, gs.Dict) else one["action"]
            assert space.contains(native if np.shape(native) or isinstance(native, dict) else int(native)), (
                native
            )


def test_frequencies_are_the_softmax() -> None:
    actions, _ = actions_of(gs.MultiDiscrete([2, 3]))
    logits = np.array([0.0, 1.0, 0.5, -0.5, 2.0], np.float32)
    tree, _ = actions.draw(np.tile(logits, (40_000, 1)), None, np.random.default_rng(3))
    for part, piece in enumerate((logits[:2], logits[2:])):
        chance = np.exp(piece) / np.exp(piece).sum()
        seen = np.bincount(tree[:, part], minlength=len(piece)) / 40_000
        np.testing.assert_allclose(seen, chance, atol=0.01)


def test_a_gaussian_is_clipped_for_the_environment_and_kept_whole_for_the_learner() -> None:
    actions, _ = actions_of(gs.Box(-0.5, 0.5, (1,), np.float32))
    tree, fields = actions.draw(
        np.full((3, 1), 9.0, np.float32), np.full(1, -5, np.float32), np.random.default_rng(1)
    )
    assert tree.tolist() == [[0.5]] * 3
    np.testing.assert_allclose(fields["drawn"], 9.0, atol=0.1)


def test_greedy_is_the_likeliest_even_with_padding() -> None:
    """Parts of different sizes are padded; the padding must never be chosen, however low the logits are."""
    actions, _ = actions_of(gs.MultiDiscrete([2, 4]))
    outputs = np.array([[-50.0, -40.0, -9.0, -8.0, -7.0, -9.0]], np.float32)
    assert actions.draw(outputs, None, None)[0].tolist() == [[1, 2]]


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(UsageError, match=r"tester cannot draw action of test: a Box of int32"):
        actions_of(gs.Box(0, 9, (2,), np.int32))
