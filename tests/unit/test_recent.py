"""Means of the last values."""

from __future__ import annotations

import math

import numpy as np

from p2prl.nodes.recent import Recent


def test_means_are_of_the_last_hundred_of_each_name() -> None:
    recent = Recent()
    assert recent.means() == {}
    for value in range(150):
        recent.add({"loss": value})
    recent.add({"norm": np.float32(0.5)})
    found = recent.means()
    assert found == {"loss": sum(range(50, 150)) / 100, "norm": 0.5}
    assert all(type(value) is float for value in found.values())  # they cross the wire


def test_what_is_not_finite_is_told_as_it_is() -> None:
    recent = Recent()
    recent.add({"loss": math.inf})
    recent.add({"loss": -math.inf})
    assert math.isnan(recent.means()["loss"])
