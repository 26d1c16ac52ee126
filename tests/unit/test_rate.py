"""Steps per second as a person reads them: core/rate.py."""

from __future__ import annotations

from p2prl.core.rate import Rate


def looked(pieces: dict[int, int], seconds: int) -> list[float]:
    """What is shown at each of so many seconds, if so much came at these."""
    rate, total, shown = Rate(0.0, 0.0), 0, []
    for second in range(1, seconds + 1):
        total += pieces.get(second, 0)
        shown.append(rate.look(float(second), float(total)))
    return shown


def test_a_bundle_each_ten_seconds_is_a_steady_rate() -> None:
    shown = looked(dict.fromkeys(range(10, 100, 10), 640), 99)
    assert shown[:9] == [0.0] * 9
    assert all(rate == 64.0 for rate in shown[9:])


def test_a_fast_world_is_followed_within_seconds() -> None:
    shown = looked({second: 100 if second <= 30 else 300 for second in range(1, 60)}, 59)
    assert shown[29] == 100.0
    assert shown[40] == shown[58] == 300.0
    assert 100.0 < shown[33] < 300.0


def test_what_stands_still_comes_to_zero() -> None:
    fast, slow = (
        looked(dict.fromkeys(range(1, 21), 50), 40),
        looked(dict.fromkeys(range(10, 61, 10), 50), 120),
    )
    assert fast[19] == 50.0
    assert 0.0 < fast[22] < 50.0
    assert fast[26:] == [0.0] * 14
    assert slow[65] == 5.0
    assert slow[-20:] == [0.0] * 20


def test_what_is_less_than_before_begins_anew() -> None:
    rate = Rate(0.0, 1000.0)
    assert rate.look(1.0, 1100.0) == 100.0
    assert rate.look(2.0, 0.0) == 0.0
    assert rate.look(3.0, 20.0) == 20.0


def test_after_a_pause_what_was_before_it_counts_no_more() -> None:
    pieces = {second: 100 for second in range(1, 700) if not 50 < second <= 650}
    shown = looked(pieces, 699)
    assert shown[640:651] == [0.0] * 11
    assert shown[651:] == [100.0] * 48


def test_one_piece_after_a_pause_is_no_rate() -> None:
    shown = looked({**dict.fromkeys(range(1, 21), 50), 3600: 50}, 3700)
    assert shown[30:] == [0.0] * 3670


def test_it_is_over_three_pieces_at_least_and_over_ten_seconds() -> None:
    rare = looked({10: 100, 20: 200, 30: 300, 40: 400}, 40)
    assert rare[-1] == (200 + 300 + 400) / 30
    often = looked({second: second for second in range(1, 31)}, 30)
    assert often[-1] == sum(range(21, 31)) / 10
