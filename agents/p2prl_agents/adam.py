"""Adam over one flat tensor. torch's optimiser costs a small network more by what it does beside the step than by it.

Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
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
        count: steps so far, a float32 tensor, on the device.
        fused: this torch has a kernel of its own for the device.
    """

    def __init__(self, flat: Any, grad: Any, eps: float) -> None:
        import torch  # here, so that a player never pays for it

        self._torch, self._flat, self._grad, self._eps = torch, flat, grad, eps
        self.mean, self.variance = torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = torch.zeros((), device=flat.device)
        self.fused = self._has_kernel()

    def step(self, learning_rate: float, left_out: Any = None) -> None:
        """One step.

        Args:
            left_out: a float32 tensor on the device; where it is 1, the kernel changes nothing. Of `fused` only.
        """
        if self.fused:
            self._by_kernel((self._flat, self._grad, self.mean, self.variance), learning_rate, left_out)
        else:
            self._by_hand(learning_rate)

    def _by_kernel(
        self, tensors: tuple[Any, Any, Any, Any], learning_rate: float, left_out: Any = None
    ) -> None:
        flat, grad, mean, variance = tensors
        count = self.count
        count.add_(1)
        self._torch._fused_adam_(
            *([flat], [grad], [mean], [variance], [], [count]),
            lr=learning_rate,
            beta1=_MEAN,
            beta2=_SQUARE,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            found_inf=left_out,
        )
        if left_out is not None:
            count.sub_(left_out)

    def _by_hand(self, learning_rate: float) -> None:
        self.count.add_(1)
        steps = self.count.item()
        seen, scale = 1 - _MEAN**steps, (1 - _SQUARE**steps) ** 0.5
        self.mean.lerp_(self._grad, 1 - _MEAN)
        self.variance.mul_(_SQUARE).addcmul_(self._grad, self._grad, value=1 - _SQUARE)
        self._flat.addcdiv_(
            self.mean, (self.variance.sqrt() / scale).add_(self._eps), value=-learning_rate / seen
        )

    def _has_kernel(self) -> bool:
        """Tried, on a single number: torch does not say."""
        try:
            zero = self._torch.zeros_like(self._flat[:1])
            self._by_kernel((zero, zero.clone(), zero.clone(), zero.clone()), 0.0)
        except (AttributeError, RuntimeError, TypeError):
            return False
        finally:
            self.count.zero_()
        return True
