"""The trainer's device, and torch's threads. The only place outside agents that may import torch."""

from __future__ import annotations

import importlib.util
import sys

from p2prl.errors import MissingPackage, UsageError
from p2prl.packages import install_command

_TORCH = "p2prl[train]"
CHOICES = ("auto", "cpu", "cuda", "mps", "gpu")


def choose_device(wanted: str, agent: str = "", accelerated: bool = True) -> str:
    """`cpu`, `cuda` or `mps` for what the person asked for; `auto` takes a GPU if there is one.

    Args:
        agent: for errors.
        accelerated: False for an agent that says that its learner computes in numpy. Nobody then looks for a GPU, which
            would import torch: a second and a half, and memory.

    Raises:
        UsageError: the device is not there, or the agent has no use for it.
        MissingPackage: a GPU was asked for and torch is not installed.
    """
    if wanted not in CHOICES:
        raise UsageError(f"unknown device {wanted!r}: use one of {', '.join(CHOICES[:4])}")
    if wanted == "cpu" or (wanted == "auto" and not accelerated):
        return "cpu"
    if not accelerated:
        raise UsageError(f"{agent} computes on the CPU alone: leave --gpu or --device {wanted} out")
    if importlib.util.find_spec("torch") is None:
        if wanted == "auto":
            return "cpu"
        raise MissingPackage(f"--device {wanted} needs torch: {install_command(_TORCH)}", _TORCH)
    import torch

    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted in ("auto", "gpu"):
        for name in ("cuda", "mps"):
            if present[name]:
                return name
        if wanted == "auto":
            return "cpu"
        raise UsageError(
            "--gpu: torch finds no GPU here (neither cuda nor mps); leave it out to train on the CPU"
        )
    if not present[wanted]:
        raise UsageError(f"--device {wanted}: torch finds no such device here; try --device auto")
    return wanted


def most_threads(device: str) -> int:
    """How many threads torch may use, by its environment; 1 where that does not matter: no torch, or a GPU."""
    if device != "cpu" or "torch" not in sys.modules:
        return 1
    import torch

    return torch.get_num_threads()


def use_threads(count: int) -> None:
    """So many threads for each of torch's operations."""
    import torch

    torch.set_num_threads(count)


def flush_denormals() -> None:
    """Let torch and numpy take numbers below float32's normal range for 0, on this thread and those that it starts.

    Adam's mean of a gradient that is 0 from some update on, such as that of a unit that is never active, falls by a
    tenth each time, and from about the 800th update on the processor takes a hundred times as long for it.
    """
    if "torch" in sys.modules:
        import torch

        torch.set_flush_denormal(True)
