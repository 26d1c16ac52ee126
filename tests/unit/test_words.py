"""Numbers go with their nouns, everywhere that people read them."""

from __future__ import annotations

import re
from pathlib import Path

from p2prl.words import Repeats, many

ROOT = Path(__file__).resolve().parents[2] / "p2prl"
NOUNS = "bundles|players|nodes|shards|sessions|episodes|updates|steps|versions|checkpoints|hosts|machines|slots|ticks"
BARE = re.compile(rf"(?:\}}|%d) (?:\w+ )?(?:{NOUNS})\b")
#: Never one, or no whole number: what comes before the noun.
SOUND = (
    "{decimal(status.lag_mean)} versions",  # as in 1.4
    "{sum(result.lengths) / len(result.lengths):.1f} steps",
    "{self._in_a_row} updates",  # twenty
    "{self.skipped} updates",  # one has words of its own
    "{WINDOW} episodes",  # a hundred
)


def test_one_and_many() -> None:
    assert [many(number, "bundle") for number in (0, 1, 2, 12_345)] == [
        "0 bundles",
        "1 bundle",
        "2 bundles",
        "12,345 bundles",
    ]
    assert [many(number, "node", "waits", "wait") for number in (1, 2)] == ["1 node waits", "2 nodes wait"]


def test_no_number_stands_before_a_plural_of_its_own() -> None:
    bare = [
        f"{path.name}:{number}: {line.strip()}"
        for folder in ("cli", "nodes")
        for path in sorted((ROOT / folder).glob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BARE.search(line) and not any(sound in line for sound in SOUND)
    ]
    assert bare == []


def test_it_would_find_one() -> None:
    assert BARE.search('f"{lost} bundles are dropped"')
    assert BARE.search('f"{lost} later checkpoints"')
    assert BARE.search('"%s joined with %d players"')
    assert not BARE.search("f\"{many(lost, 'bundle')} dropped\"")


def test_a_line_that_comes_again_and_again_is_told_with_its_count() -> None:
    repeats = Repeats()
    told = [line for number in range(3602) for text in ("one", "two") if (line := repeats.told(text))]
    assert len(told) == 2 * 4
    assert told[:2] == ["one", "two"]
    assert told[-2:] == ["one (1,000 times so far)", "two (1,000 times so far)"]
    assert sum(bool(repeats.told(f"line {number}")) for number in range(5000)) == 998, (
        "they are not kept for ever"
    )
