"""The docs, as tests read them: their files, code blocks, links and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Block:
    """One fenced code block.

    Attributes:
        language: the word behind the fence, or an empty string.
        line: of the opening fence, from 1.
    """

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Every Markdown page that is ours."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    """The fenced code blocks of a page."""
    found: list[Block] = []
    lines = text.splitlines()
    start: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
        else:
            language = lines[start].removeprefix("```").strip()
            found.append(Block(language, "\n".join(lines[start + 1 : number]) + "\n", start + 1))
            start = None
    assert start is None, f"the fence of line {(start or 0) + 1} is never closed"
    return found


def prose(text: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)


def block_that_begins_with(text: str, beginning: str) -> str:
    """The one block of a page that begins so."""
    [found] = [block.text for block in blocks(text) if block.text.startswith(beginning)]
    return found


def tabular_agent(folder: Path) -> Path:
    """`tabular.py`, as docs/write-an-agent.md has it, written into `folder`."""
    page = read(ROOT / "docs" / "write-an-agent.md")
    path = folder / "tabular.py"
    path.write_text(block_that_begins_with(page, '"""Tabular Q-learning'), encoding="utf-8")
    return path
