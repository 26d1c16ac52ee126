"""What a Q-network's last layer says: values, losses and dueling heads on numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from p2prl_agents.dqn import DQN, DQNSettings
from p2prl_agents.maths import project
from p2prl_agents.ops import NumpyOps, TorchOps
from p2prl_agents.q_heads import Categories, Head, Quantiles, Values, dueling, make_head, means, of_actions

from p2prl.core.spaces import EnvSpec, Leaf

ENV = EnvSpec(
    "test", Leaf("box", "float32", (4,), (-1.0,), (1.0,)), Leaf("discrete", "uint8", (), (0.0,), (2.0,))
)


def loss(head: Head, outputs: list[float], reward: float, discount: float, following: list[float]) -> float:
    rows = [torch.tensor([values]) for values in (outputs, [reward], [discount], following)]
    each = head.loss(torch, *rows)
    assert each.shape == (1, 1)
    return float(each)


def test_the_error_of_a_value_is_under_the_huber_loss() -> None:
    # target 1 + 0.5 * 4 = 3: an error of 0.5 costs a half of its square, one of 3 costs 3 - 1/2
    assert loss(Values(), [2.5], 1.0, 0.5, [4.0]) == pytest.approx(0.125)
    assert loss(Values(), [0.0], 1.0, 0.5, [4.0]) == pytest.approx(2.5)


def test_quantile_regression_by_hand() -> None:
    """Quantiles at 1/4 and 3/4, both predicted 0; targets 1 + 0.5 * (-4, 2) = -1 and 2.

    Huber: 1/2 of the error -1, 3/2 of the error 2. Weight of an error below 0: 1 - tau, else tau.
    At 1/4: (3/4 * 1/2 + 1/4 * 3/2) / 2 = 3/8. At 3/4: (1/4 * 1/2 + 3/4 * 3/2) / 2 = 5/8.
    """
    head = make_head("quantile", 2, 0, 1, torch.from_numpy)
    assert isinstance(head, Quantiles)
    assert head.levels.tolist() == [0.25, 0.75]
    assert loss(head, [0.0, 0.0], 1.0, 0.5, [-4.0, 2.0]) == pytest.approx(1.0)


def test_the_best_quantiles_of_a_return_are_its_own() -> None:
    """Of rewards 0 and 10, alike likely, nothing following: quantiles at 1/4 and 3/4 go to 0 and 10, the mean to 5."""
    head = make_head("quantile", 2, 0, 1, torch.from_numpy)
    quantiles = torch.zeros(1, 2, requires_grad=True)
    adam = torch.optim.Adam([quantiles], lr=0.1)
    reward = torch.tensor([[0.0], [10.0]])
    for _ in range(600):
        adam.zero_grad()
        head.loss(
            torch, quantiles.expand(2, 2), reward, torch.zeros(2, 1), torch.zeros(2, 2)
        ).sum().backward()
        adam.step()
    # Under the Huber loss a quantile stops within kappa = 1 of the jump.
    np.testing.assert_allclose(quantiles.detach().numpy(), [[0.5, 9.5]], atol=0.3)
    assert head.values(TorchOps(), quantiles).item() == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize(
    ("shares", "places", "expected"),
    [
        # on an atom: all of it there
        ([0, 0, 1, 0], [0, 0, 2, 0], [0, 0, 1, 0]),
        # between two: more to the nearer one
        ([0, 1, 0, 0], [0, 1.25, 0, 0], [0, 0.75, 0.25, 0]),
        # outside: to the ends
        ([0.5, 0, 0, 0.5], [-7, 1, 2, 9], [0.5, 0, 0, 0.5]),
        # several on one place: they add up
        ([0.25, 0.25, 0.25, 0.25], [1, 1, 1, 2.5], [0, 0.75, 0.125, 0.125]),
    ],
)
def test_projection_by_hand(shares: list[float], places: list[float], expected: list[float]) -> None:
    """Onto atoms at 0, 1, 2, 3."""
    support = np.arange(4, dtype=np.float32)
    rows = np.array([shares], np.float32), np.array([places], np.float32)
    np.testing.assert_allclose(project(*rows, support), [expected], atol=1e-6)
    theirs = project(*(torch.from_numpy(row) for row in rows), torch.from_numpy(support))
    np.testing.assert_allclose(theirs.numpy(), [expected], atol=1e-6)


def test_projection_is_the_papers_algorithm() -> None:
    """Algorithm 1 of Bellemare et al. as it stands: floor and ceiling of each atom's place."""
    rng = np.random.default_rng(1)
    low, high, atoms = -2.0, 5.0, 11
    support = np.linspace(low, high, atoms, dtype=np.float32)
    shares = rng.dirichlet(np.ones(atoms), 20).astype(np.float32)
    reward = rng.normal(0, 4, 20)
    places = reward[:, None] + 0.9 * support
    expected = np.zeros((20, atoms))
    for row in range(20):
        for j in range(atoms):
            b = (min(high, max(low, places[row, j])) - low) / ((high - low) / (atoms - 1))
            below, above = int(np.floor(b)), int(np.ceil(b))
            expected[row, below] += shares[row, j] * (above - b if above > below else 1)
            expected[row, above] += shares[row, j] * (b - below)
    np.testing.assert_allclose(project(shares, places, support), expected, atol=1e-5)


def test_c51_by_hand() -> None:
    """Atoms 0, 1, 2; what follows is surely 1: the target is 1 + 0.5 * 1, half on 1, half on 2."""
    head = make_head("c51", 3, 0.0, 2.0, torch.from_numpy)
    assert isinstance(head, Categories)
    shares = np.array([0.5, 0.25, 0.25])
    sure = [-100.0, 100.0, -100.0]
    expected = -0.5 * np.log(0.25) - 0.5 * np.log(0.25)
    assert loss(head, np.log(shares).tolist(), 1.0, 0.5, sure) == pytest.approx(expected, rel=1e-5)
    assert head.values(TorchOps(), torch.tensor(np.log(shares), dtype=torch.float32)).tolist() == [0.75]


@pytest.mark.parametrize("kind", ["none", "quantile", "c51"])
def test_values_are_the_same_in_numpy_and_in_torch(kind: str) -> None:
    outputs = np.random.default_rng(1).normal(size=(5, 3 * (1 if kind == "none" else 7))).astype(np.float32)
    ours = make_head(kind, 7, -1.0, 1.0).values(NumpyOps(), outputs)  # type: ignore[arg-type]
    theirs = make_head(kind, 7, -1.0, 1.0, torch.from_numpy)  # type: ignore[arg-type]
    assert ours.shape == (5, 3)
    np.testing.assert_allclose(ours, theirs.values(TorchOps(), torch.from_numpy(outputs)), atol=1e-6)


def test_of_actions_takes_all_atoms_of_each_rows_action() -> None:
    outputs = torch.arange(12.0).reshape(2, 6)
    assert of_actions(outputs, torch.tensor([[1], [2]]), 2).tolist() == [[2, 3], [10, 11]]
    assert of_actions(outputs, torch.tensor([[5], [0]]), 1).tolist() == [[5], [6]]


def test_dueling_by_hand() -> None:
    """V 10; advantages 1, 2, 6 about their mean 3: 8, 9, 13. Of two atoms each apart."""
    weights = {"q/action/bias": np.array([1.0, 2.0, 6.0]), "q/value/bias": np.array([10.0])}
    assert dueling(weights, "bias", 1).tolist() == [8.0, 9.0, 13.0]
    weights = {"q/action/bias": np.array([1.0, 0, 2, 0, 6, 3]), "q/value/bias": np.array([10.0, 1.0])}
    assert dueling(weights, "bias", 2).tolist() == [8, 0, 9, 0, 13, 3]


def test_means_of_a_last_layer_by_hand() -> None:
    assert means(np.array([[1.0, 3.0, 5.0, 9.0]]), 2).tolist() == [[2.0, 7.0]]
    assert means(np.array([1.0, 3.0]), 1).tolist() == [1.0, 3.0]


@pytest.mark.parametrize("atoms", [1, 5])
def test_one_folded_layer_gives_what_two_dueling_heads_give(atoms: int) -> None:
    """Against equation 9 on the outputs of two layers of torch's own."""
    kind = "none" if atoms == 1 else "quantile"
    agent = DQN(ENV, DQNSettings(hidden=(6,), dueling=True, distribution=kind, atoms=max(2, atoms)))
    rng = np.random.default_rng(1)
    drawn = agent.network.initial(1)
    weights = {name: rng.normal(size=values.shape).astype(np.float32) for name, values in drawn.items()}
    obs = rng.normal(size=(9, 4)).astype(np.float32)
    inputs = agent.observations.of_columns({"obs": obs})
    ours = agent.network.step(NumpyOps(), agent.folded(weights), inputs, {})[0]["action"]
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    hidden = (torch.from_numpy(obs) @ tensors["q/dense0/weight"] + tensors["q/dense0/bias"]).relu()
    advantage = (hidden @ tensors["q/action/weight"] + tensors["q/action/bias"]).reshape(9, 3, atoms)
    value = (hidden @ tensors["q/value/weight"] + tensors["q/value/bias"]).reshape(9, 1, atoms)
    expected = value + advantage - advantage.mean(dim=1, keepdim=True)
    np.testing.assert_allclose(ours.reshape(9, 3, atoms), expected, atol=1e-5)
