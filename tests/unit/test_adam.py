"""p2prl_agents.adam: one step by hand, and many as torch makes them."""

import pytest
from p2prl_agents.adam import Adam

torch = pytest.importorskip("torch")


def made(fused: bool, eps: float = 1e-5) -> Adam:
    """Of three weights, and their gradient."""
    adam = Adam(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, -4.0, 0.0]), eps)
    if fused and not adam.fused:
        pytest.skip("this torch has no kernel for the CPU")
    adam.fused = fused
    return adam


@pytest.mark.parametrize("fused", [True, False])
def test_the_first_step_is_the_learning_rate_by_the_gradients_sign(fused: bool) -> None:
    """By hand: the moments are 0.1 g and 0.001 g^2; by 1 - 0.9 and 1 - 0.999 they are g and g^2."""
    adam = made(fused, eps=0.0 if fused else 1e-12)
    adam._grad[2] = 1e-3
    adam.step(0.25)
    assert adam._flat.tolist() == pytest.approx([0.75, -1.75, 2.75], abs=1e-5)
    assert adam.mean.tolist() == pytest.approx([0.05, -0.4, 1e-4])
    assert adam.variance.tolist() == pytest.approx([0.001 * 0.25, 0.001 * 16, 1e-9])
    assert adam.count.item() == 1


@pytest.mark.parametrize("fused", [True, False])
def test_many_steps_are_those_of_torch(fused: bool) -> None:
    adam = made(fused)
    theirs = adam._flat.clone().requires_grad_(True)
    other = torch.optim.Adam([theirs], eps=1e-5)
    for at in range(40):
        adam._grad.copy_(torch.tensor([1.0 / (at + 1), float(at % 3), -0.01]))
        theirs.grad = adam._grad.clone()
        rate = other.param_groups[0]["lr"] = 0.1 / (at + 1)
        adam.step(rate)
        other.step()
    assert adam._flat.tolist() == pytest.approx(theirs.tolist(), rel=1e-5)
    state = other.state[theirs]
    assert adam.mean.tolist() == pytest.approx(state["exp_avg"].tolist(), rel=1e-5)
    assert adam.variance.tolist() == pytest.approx(state["exp_avg_sq"].tolist(), rel=1e-5)


def test_a_step_that_is_left_out_changes_nothing() -> None:
    adam = made(fused=True)
    adam.step(0.1, left_out=torch.tensor(0.0))
    before = [tensor.clone() for tensor in (adam._flat, adam.mean, adam.variance, adam.count)]
    adam.step(0.1, left_out=torch.tensor(1.0))
    after = (adam._flat, adam.mean, adam.variance, adam.count)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
