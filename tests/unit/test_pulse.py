"""When a silent broker is spoken of, and when it is started anew."""

from __future__ import annotations

from p2prl.nodes.pulse import Pulse


def findings(pulse: Pulse, begin: float, end: float, up: bool = True) -> list[tuple[int, str]]:
    """What is found by looking ten times a second, without what is well."""
    found = []
    for tenth in range(int(begin * 10), int(end * 10) + 1):
        finding = pulse.look(tenth / 10, up)
        if finding != "well":
            found.append((tenth // 10, finding))
    return found


def test_silence_is_said_and_then_ended() -> None:
    assert findings(Pulse(0.0), 0, 21) == [(5, "silent"), (15, "hung"), (20, "silent")]


def test_a_broker_that_is_starting_gets_more_time() -> None:
    assert findings(Pulse(0.0), 0, 60, up=False) == [
        *((second, "silent") for second in (5, 15, 25, 35, 45, 55)),
        (60, "hung"),
    ]


def test_an_answer_makes_all_well_again() -> None:
    pulse = Pulse(0.0)
    assert findings(pulse, 0, 14) == [(5, "silent")]
    pulse.heard(14.0)
    assert pulse.silent_s(15.0) == 1.0
    assert findings(pulse, 14.1, 20) == [(19, "silent")]


def test_whoever_stood_still_itself_blames_nobody() -> None:
    pulse = Pulse(0.0)
    assert findings(pulse, 0, 4) == []
    assert pulse.look(500.0, True) == "well"
    assert findings(pulse, 500, 506) == [(505, "silent")]
