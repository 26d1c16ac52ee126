"""Looking for NaN and infinity in arrays: weights, a learner's state, observations, rewards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from p2prl.learn.contracts import Array


def not_finite(arrays: Mapping[str, Array], infinity: bool = True) -> str:
    """The first array that holds NaN or infinity, and which of them; an empty string if none does.

    Args:
        infinity: False to look for NaN alone.
    """
    for name, given in arrays.items():
        values = np.asarray(given)
        if values.dtype.kind != "f":
            continue
        bad = ~np.isfinite(values) if infinity else np.isnan(values)
        if bad.any():
            return f"{name} holds {float(values[bad][0])}"
    return ""


def all_finite(values: Array) -> bool:
    """True if no float of an array is NaN or infinite."""
    # The cheapest way to ask: half of what `.all()` costs.
    return b"\0" not in np.isfinite(values).tobytes()
