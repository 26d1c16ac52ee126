"""These tests need Linux and root. Elsewhere they are skipped, except in CI, where they fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.netns.lab import Lab, missing

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `netns`."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.netns)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[[int], Lab]]:
    """`lab(n)` makes a LAN of n hosts, which ends with the test."""
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(f"{why}, and in CI this test must run")
        pytest.skip(why)
    with ExitStack() as stack:
        yield lambda size: stack.enter_context(Lab(size, tmp_path))
