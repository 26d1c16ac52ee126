"""The last column of the tables in reliability.md and threat-model.md names tests: each of them must exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import docs_kit
from tests.docs_kit import ROOT

_DOCS = ROOT / "docs"
#: What each table must have a row about, as words of its first column.
_WANTED = {
    "reliability.md": (
        "kill -9 of a member",
        "kill -9 of a player",
        "kill -9 of a shard",
        "kill -9 of the broker",
        "kill -9 of the trainer",
        "kill -9 of the whole host",
        "SIGSTOP",
        "link down",
        "link flapping",
        "new address",
        "full disk",
        "half-written checkpoint",
        "30 joiners",
        "10 minutes",
        "clock jump",
    ),
    "threat-model.md": (
        "no key",
        "random key",
        "removed key",
        "wrong code",
        "replayed enrolment",
        "tampered enrolment",
        "stolen mDNS name",
        "oversize frame",
        "lz4 bomb",
        "pickle",
        "wrong schema",
        "NaN",
        "future version",
        "flood",
        "weights published by a player's key",
        "orders",
    ),
}


def rows(page: Path) -> list[list[str]]:
    """The cells of the table whose last column is headed `test`, row by row."""
    lines = docs_kit.read(page).splitlines()
    found: list[list[str]] = []
    inside = False
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[-1] == "test":
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and set(cells[-1]) - set("-: "):
            found.append(cells)
    return found


def named(name: str) -> list[str]:
    """The tests that a page's table names."""
    return [node.strip(" `") for cells in rows(_DOCS / name) for node in cells[-1].split("<br>")]


@pytest.fixture(scope="module")
def there() -> set[str]:
    """The tests of all files that are named, each with its parameters and without."""
    files = sorted({node.partition("::")[0] for name in _WANTED for node in named(name)})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {line for line in done.stdout.splitlines() if "::" in line}
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    return found | {line.partition("[")[0] for line in found}


@pytest.mark.parametrize("name", sorted(_WANTED))
def test_each_row_names_a_test_that_exists(name: str, there: set[str]) -> None:
    assert len(named(name)) >= len(_WANTED[name])
    assert not [node for node in named(name) if node not in there]


@pytest.mark.parametrize("name", sorted(_WANTED))
def test_no_row_is_missing(name: str) -> None:
    first = " / ".join(cells[0] for cells in rows(_DOCS / name))
    assert not [words for words in _WANTED[name] if words not in first]
