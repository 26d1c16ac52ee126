"""Adam over one flat tensor. torch's class costs a small network more by what it does beside the step than by it.

Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1; the arithmetic is that of `torch.optim.adam.adam`.
"""

from __future__ import annotations

from typing import Any

#: How fast the moments forget: the paper's beta, and torch's defaults.
_MEAN, _SQUARE = 0.9, 0.999


class Adam:
    """Moves a tensor down its gradient.

    Args:
        flat, grad: float32 `[P]`, on one device.
        eps: keeps the step bounded where gradients were almost zero.

    Attributes:
        mean, variance: the moments, `[P]` each.
        count: steps so far, a float32 tensor; on the device where `fused`.
        fused: this torch has one kernel for all of it on that device.
    """

    def __init__(self, flat: Any, grad: Any, eps: float) -> None:
        import torch  # here, so that a player never pays for it
        from torch.optim.adam import adam

        self._adam, self._flat, self._grad, self._eps = adam, flat, grad, eps
        self.mean, self.variance = torch.zeros_like(flat), torch.zeros_like(flat)
        self.fused = _has_kernel(torch, flat)
        self.count = torch.zeros((), device=flat.device if self.fused else "cpu")

    def step(self, learning_rate: float, left_out: Any = None) -> None:
        """One step.

        Args:
            left_out: a float32 tensor on the device; where it is 1, the kernel changes nothing. Of `fused` only.
        """
        self._adam(
            [self._flat],
            [self._grad],
            [self.mean],
            [self.variance],
            [],
            [self.count],
            foreach=False,
            fused=self.fused,
            found_inf=left_out,
            amsgrad=False,
            beta1=_MEAN,
            beta2=_SQUARE,
            lr=learning_rate,
            weight_decay=0.0,
            eps=self._eps,
            maximize=False,
        )


def _has_kernel(torch: Any, flat: Any) -> bool:
    """Its class says so."""
    try:
        torch.optim.Adam([torch.zeros_like(flat[:1])], fused=True)
    except RuntimeError:
        return False
    return True
