"""Join codes: what a host makes, and what people type."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.codes import WORDS, new_code, parse_code
from p2prl.errors import UsageError


def distance(one: str, other: str) -> int:
    """Levenshtein's."""
    before = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        now = [i]
        for j, b in enumerate(other, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (a != b)))
        before = now
    return before[-1]


def test_the_words_are_256_short_ones_in_order() -> None:
    assert len(WORDS) == len(set(WORDS)) == 256
    assert list(WORDS) == sorted(WORDS)
    assert all(3 <= len(word) <= 7 and word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_no_two_words_differ_by_one_letter() -> None:
    close = [pair for pair in itertools.combinations(WORDS, 2) if distance(*pair) < 2]
    assert close == []


def test_a_new_code_is_its_own_normal_form() -> None:
    source = random.Random(1)
    codes = [new_code(source.randrange) for _ in range(2000)]
    assert all(parse_code(code) == code for code in codes)
    assert {code.split("-")[0] for code in codes} == {str(number) for number in range(1, 100)}
    assert {word for code in codes for word in code.split("-")[1:]} == set(WORDS)
    assert len(set(codes)) > 1990


def test_every_code_is_as_likely_as_any_other() -> None:
    """Each triple of choices gives another code, so that none is made twice as often."""
    words = range(len(WORDS))
    choices = itertools.product(words, words[:-1])
    pairs = {new_code(iter_below([0, first, second])) for first, second in choices}
    assert len(pairs) == 256 * 255


def iter_below(picks: list[int]) -> Callable[[int], int]:
    """Gives these, one after the other."""
    rest = iter(picks)
    return lambda _: next(rest)


@pytest.mark.parametrize(
    "typed",
    [
        "17-maple-otter",
        "17 maple otter",
        "  17--Maple   OTTER\n",
        "017.maple.otter.",
        "17_maple_otter",
        "17, maple, otter",
        "17\u2013maple\u2014otter",  # dashes that a word processor makes
        "\uff11\uff17 maple otter",  # full-width digits
        "17 - maple - otter",
    ],
)
def test_what_people_type_becomes_the_code(typed: str) -> None:
    assert parse_code(typed) == "17-maple-otter"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("17-mapel-otter", "no code has the word 'mapel'; did you mean maple?"),
        ("17-maple-oter", "no code has the word 'oter'; did you mean otter?"),
        ("17-maple-qqqqqq", "no code has the word 'qqqqqq'; the host shows the right ones"),
        ("", "the join code is empty; a join code is a number and two words, for example 17-maple-otter"),
        (" - ", "the join code is empty"),
        ("maple-otter", "'maple-otter' is not a join code; a join code is a number and two words"),
        ("17-maple", "'17-maple' is not a join code"),
        ("17-maple-otter-zebra", "is not a join code"),
        ("maple-17-otter", "is not a join code"),
        ("0-maple-otter", "starts with a number from 1 to 99, not with 0"),
        ("100-maple-otter", "starts with a number from 1 to 99, not with 100"),
        ("17-maple-maple", "no code has the word 'maple' twice"),
        ("9" * 5000, "that is too long for a join code"),
        ("17-\x1b[2Jmaple-otter", "no code has the word '[2jmaple'"),
        ("\u0661\u0667-maple-otter", "is not a join code"),  # digits of another script, which nobody is shown
    ],
)
def test_what_is_no_code_is_said_in_one_line(typed: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_code(typed)
    text = str(caught.value)
    assert said in text
    assert len(text) < 400
    assert text.isprintable()


@given(st.text(max_size=200))
def test_any_text_is_a_code_or_a_usage_error(typed: str) -> None:
    try:
        code = parse_code(typed)
    except UsageError as error:
        said = str(error)
    else:
        said = parse_code(code)
        assert said == code
    assert said.isprintable()


@given(st.sampled_from(WORDS), st.data())
def test_one_slip_in_a_word_is_answered_with_that_word(word: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(word) - 1))
    slip = word[:place] + data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz")) + word[place + 1 :]
    other = "zebra" if word != "zebra" else "acorn"
    if slip == word:
        return
    with pytest.raises(UsageError, match=rf"\b{word}\b"):
        parse_code(f"5-{slip}-{other}")
