"""Both sides of an enrolment, with hostile ones and machines in the middle; the clock is fake, SPAKE2 is real."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zmq.utils import z85

from p2prl.core import messages as m
from p2prl.core.codes import new_code, parse_code
from p2prl.core.enrolment import (
    EXCHANGE_S,
    MAX_EXCHANGES,
    MAX_TOKENS,
    Attempt,
    CodeChanged,
    CodeEntry,
    Effect,
    Gate,
    Newcomer,
    Proved,
    Reply,
    TokenEntry,
)
from p2prl.core.guesses import BEGIN_BURST
from p2prl.core.pake import SHARE_BYTES, Claim, Party, Proofs
from p2prl.errors import LocalProtocolError, NotAdmitted, RemoteProtocolError
from p2prl.wire import frames

CODE, OTHER = "17-maple-otter", "18-maple-otter"
TOKEN_SECRET = "s" * 32
WALL = 1.8e9
_source = random.Random(20)


def a_key(number: int) -> str:
    return z85.encode(number.to_bytes(32, "big")).decode("ascii")


SERVER_KEY, NODE_KEY, EVIL_KEY = a_key(1), a_key(2), a_key(666)


class Host:
    """A gate, and a lead that admits whoever proved."""

    def __init__(
        self,
        code: str | None = CODE,
        uses: int | None = None,
        ttl_s: float | None = None,
        server_key: str = SERVER_KEY,
    ) -> None:
        self.gate = Gate(
            server_key,
            entropy=_source.randbytes,
            below=_source.randrange,
            code=code,
            uses=uses,
            ttl_s=ttl_s,
            now=0.0,
        )
        self.proved: list[Proved] = []
        self.attempts: list[Attempt] = []
        self.news: list[m.CodeNews] = []

    def say(
        self,
        message: m.EnrolBegin | m.EnrolProof,
        now: float = 0.0,
        peer: bytes = b"p",
        address: str = "10.0.0.2",
    ) -> m.Message:
        """The one answer to a message."""
        answers: list[m.Message] = []
        for effect in self.keep(self.gate.handle(peer, address, message, now)):
            if isinstance(effect, Reply):
                assert effect.peer == peer
                answers.append(effect.message)
            elif isinstance(effect, Proved):
                assert effect.peer == peer
                answers.append(m.EnrolProved(proof=effect.proof, standing="admitted"))
        assert len(answers) == 1
        return answers[0]

    def keep(self, effects: list[Effect]) -> list[Effect]:
        self.proved += [effect for effect in effects if isinstance(effect, Proved)]
        self.attempts += [effect for effect in effects if isinstance(effect, Attempt)]
        self.news += [effect.news for effect in effects if isinstance(effect, CodeChanged)]
        return effects

    def guesses(self) -> int:
        entry = self.gate.saved_code(0.0, WALL)
        return entry.guesses if entry else 0

    def enrol(
        self,
        secret: str,
        now: float = 0.0,
        peer: bytes = b"p",
        address: str = "10.0.0.2",
        key: str = NODE_KEY,
        token: str = "",
    ) -> m.Message | m.Standing:
        """A newcomer from its first word to the end: how it stands, or the host's refusal."""
        newcomer = a_newcomer(secret, key, token)
        share = self.say(newcomer.begin(), now, peer, address)
        if not isinstance(share, m.EnrolShare):
            return share
        proved = self.say(newcomer.answer(share), now, peer, address)
        return newcomer.finish(proved) if isinstance(proved, m.EnrolProved) else proved


def a_newcomer(
    secret: str = CODE,
    key: str = NODE_KEY,
    token: str = "",
    server_key: str = SERVER_KEY,
    name: str = "bob's laptop",
) -> Newcomer:
    return Newcomer(
        secret,
        node_key=key,
        name=name,
        server_key=server_key,
        entropy=_source.randbytes,
        token=token,
        protocol=m.PROTOCOL,
        version="0.1.0",
    )


def reason(answer: object) -> str:
    assert isinstance(answer, m.Refusal), answer
    assert answer.reason in m.REFUSALS
    assert answer.text
    assert answer.text.isprintable()
    return answer.reason


# --- what is to work


def test_who_knows_the_code_gets_in_and_both_sides_have_proved_it() -> None:
    host = Host()
    assert host.enrol(CODE) == "admitted"
    [proved] = host.proved
    assert (proved.key, proved.name, proved.address, proved.how) == (
        NODE_KEY,
        "bob's laptop",
        "10.0.0.2",
        "code",
    )
    assert [attempt.outcome for attempt in host.attempts] == ["proved"]
    assert host.attempts[0].key == NODE_KEY
    assert host.news == []


def test_a_code_admits_many_and_the_same_key_twice() -> None:
    host = Host()
    for number in range(5):
        for _ in range(2):
            assert host.enrol(CODE, key=a_key(number), peer=str(number).encode()) == "admitted"
    assert [proved.key for proved in host.proved] == [a_key(number) for number in range(5) for _ in range(2)]


def test_the_standing_is_the_hosts_to_say() -> None:
    host, newcomer = Host(), a_newcomer()
    share = host.say(newcomer.begin())
    assert isinstance(share, m.EnrolShare)
    answer = host.say(newcomer.answer(share))
    assert isinstance(answer, m.EnrolProved)
    assert newcomer.finish(msgspec.structs.replace(answer, standing="waiting")) == "waiting"


def test_every_message_fits_the_enrol_socket() -> None:
    host, newcomer = Host(), a_newcomer(name="n" * 64, token="t" * 64)
    host.gate.invite("t" * 64, CODE, 1, 60.0, 0.0)
    begin = newcomer.begin()
    share = host.say(begin)
    assert isinstance(share, m.EnrolShare)
    proof = newcomer.answer(share)
    assert all(len(frames.encode(message)) <= 1000 for message in (begin, share, proof, host.say(proof)))


# --- wrong codes


def test_a_wrong_code_is_one_guess_and_shows_nothing() -> None:
    host = Host()
    answer = host.enrol(OTHER)
    assert reason(answer) == "wrong_code"
    assert isinstance(answer, m.Refusal)
    assert answer.retry_after_s == 1.0
    assert host.proved == []
    assert host.guesses() == 1
    [attempt] = host.attempts
    assert (attempt.outcome, attempt.key, attempt.address) == ("wrong_code", NODE_KEY, "10.0.0.2")
    assert attempt.text == '"bob\'s laptop" at 10.0.0.2 gave a wrong join code (guess 1 of 10)'


def test_the_same_address_waits_others_do_not() -> None:
    host = Host()
    host.enrol(OTHER, now=0.0)
    waiting = host.enrol(CODE, now=0.5)
    assert reason(waiting) == "rate_limited"
    assert isinstance(waiting, m.Refusal)
    assert waiting.retry_after_s == pytest.approx(0.5)
    assert "1 s" in waiting.text
    assert host.enrol(CODE, now=0.5, address="10.0.0.3", peer=b"q") == "admitted"
    host.enrol(OTHER, now=1.0)
    assert reason(host.enrol(CODE, now=2.9)) == "rate_limited"
    assert host.enrol(CODE, now=3.0) == "admitted"
    assert host.enrol(CODE, now=3.0) == "admitted"
    again = host.enrol(OTHER, now=3.0)  # a right proof was forgiveness: this is a first wrong guess
    assert isinstance(again, m.Refusal)
    assert (again.reason, again.retry_after_s) == ("wrong_code", 1.0)


def test_exchanges_begun_side_by_side_are_still_one_guess_at_a_time() -> None:
    host = Host()
    newcomers = [a_newcomer(OTHER) for _ in range(5)]
    shares = [host.say(newcomer.begin(), peer=bytes([i])) for i, newcomer in enumerate(newcomers)]
    answers = []
    for i, (newcomer, share) in enumerate(zip(newcomers, shares, strict=True)):
        assert isinstance(share, m.EnrolShare)
        answers.append(reason(host.say(newcomer.answer(share), peer=bytes([i]))))
    assert answers == ["wrong_code"] + 4 * ["rate_limited"]
    assert host.guesses() == 1


def test_a_hundred_wrong_codes_and_honest_newcomers_still_get_in_with_the_code_of_the_day() -> None:
    host, code, now, made = Host(), CODE, 0.0, 0
    for number in range(100):
        answer = host.enrol(OTHER, now, peer=b"evil", address=f"10.0.1.{number}")
        made += reason(answer) == "wrong_code"
        now += 1.0
        if host.news and host.news[-1].code != code:
            code = host.news[-1].code
            assert host.news[-1].reason == "guesses"
            assert parse_code(code) == code
            assert host.enrol(code, now, peer=b"good", address="10.0.0.9", key=a_key(number)) == "admitted"
    assert made == 100
    assert len(host.news) == 10
    assert len({news.code for news in host.news}) == 10
    assert {proved.key for proved in host.proved} == {a_key(number) for number in range(9, 100, 10)}
    assert reason(host.enrol(CODE, now, address="10.0.0.10", peer=b"late")) == "wrong_code"
    assert sum(attempt.outcome == "wrong_code" for attempt in host.attempts) == 101


def test_one_guesser_gets_few_guesses_in_an_hour() -> None:
    host, now, guesses = Host(), 0.0, 0
    while now < 3600.0:
        answer = host.enrol(OTHER, now)
        if isinstance(answer, m.Refusal) and answer.reason == "wrong_code":
            guesses += 1
        assert isinstance(answer, m.Refusal)
        now += answer.retry_after_s
    assert guesses < 70
    assert host.proved == []


def test_a_code_that_is_replaced_ends_the_exchanges_under_it_without_a_guess() -> None:
    host, honest, evil = Host(), a_newcomer(), a_newcomer(OTHER)
    share = host.say(honest.begin(), peer=b"honest", address="10.0.0.8")
    evil_share = host.say(evil.begin(), peer=b"evil", address="10.0.0.9")
    [changed] = host.keep(host.gate.renew("asked", 0.0))
    assert isinstance(changed, CodeChanged)
    assert changed.news.reason == "asked"
    assert isinstance(share, m.EnrolShare)
    assert isinstance(evil_share, m.EnrolShare)
    assert reason(host.say(honest.answer(share), peer=b"honest", address="10.0.0.8")) == "no_code"
    assert reason(host.say(evil.answer(evil_share), peer=b"evil", address="10.0.0.9")) == "no_code"
    assert host.guesses() == 0
    assert host.enrol(changed.news.code, address="10.0.0.8") == "admitted"


# --- tampering and machines in the middle


def run_tampered(place: int, change: Callable[[bytes], bytes]) -> None:
    """An enrolment in which one of the four frames is changed; nobody may be misled by it."""
    host, newcomer = Host(), a_newcomer()
    changed = False

    def carry(number: int, message: m.Message) -> m.EnrolMessage:
        nonlocal changed
        frame = frames.encode(message)
        arrived = frames.decode_enrol(change(frame) if number == place else frame)
        changed |= arrived != message
        return arrived

    finished = False
    try:
        begin = carry(0, newcomer.begin())
        if isinstance(begin, m.EnrolBegin | m.EnrolProof):
            share = carry(1, host.say(begin))
            if isinstance(share, m.EnrolShare):
                proof = carry(2, newcomer.answer(share))
                if isinstance(proof, m.EnrolBegin | m.EnrolProof):
                    proved = carry(3, host.say(proof))
                    if isinstance(proved, m.EnrolProved):
                        newcomer.finish(proved)
                        finished = True
    except (RemoteProtocolError, NotAdmitted):
        changed = True
    assert all(proved.key == NODE_KEY for proved in host.proved)
    if changed:
        assert not finished
        assert place == 3 or host.proved == []
    else:
        assert finished


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 3), st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_in_any_message_ends_in_a_refusal(place: int, where: int, flip: int) -> None:
    def change(frame: bytes) -> bytes:
        spot = where % len(frame)
        return frame[:spot] + bytes([frame[spot] ^ flip]) + frame[spot + 1 :]

    run_tampered(place, change)


@pytest.mark.parametrize("place", [2, 3])
def test_each_byte_of_a_proof_counts(place: int) -> None:
    for spot in range(1, 33):  # a proof is the end of its frame, or stands before the standing

        def change(frame: bytes, spot: int = spot) -> bytes:
            start = frame.index(b"proof\xc4\x20") + 7
            return frame[: start + spot - 1] + bytes([frame[start + spot - 1] ^ 1]) + frame[start + spot :]

        run_tampered(place, change)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.binary(max_size=80))
def test_a_message_that_is_replaced_ends_in_a_refusal(place: int, frame: bytes) -> None:
    run_tampered(place, lambda _: frame)


@pytest.mark.parametrize("place", range(4))
def test_what_is_not_changed_is_not_refused(place: int) -> None:
    run_tampered(place, lambda frame: frame)


@pytest.mark.parametrize(
    "swap",
    [
        {"node_key": EVIL_KEY},
        {"name": "bob's laptoq"},
        {"version": "0.1.1"},
        {"token": "t"},
    ],
)
def test_a_swapped_field_of_the_first_message_ends_in_a_refusal(swap: dict[str, str]) -> None:
    host, newcomer = Host(), a_newcomer()
    host.gate.invite("t", CODE, 1, 60.0, 0.0)  # the very same secret, under another name
    share = host.say(msgspec.structs.replace(newcomer.begin(), **swap))
    assert isinstance(share, m.EnrolShare)
    assert reason(host.say(newcomer.answer(share))) == "wrong_code"
    assert host.proved == []


def test_a_machine_in_the_middle_that_gives_its_own_server_key_is_not_believed() -> None:
    """It passes everything else on: the host refuses, and the newcomer never gets a proof."""
    host, newcomer = Host(), a_newcomer(server_key=EVIL_KEY)
    share = host.say(newcomer.begin())
    assert isinstance(share, m.EnrolShare)
    assert reason(host.say(newcomer.answer(share))) == "wrong_code"
    assert host.proved == []


def test_a_machine_that_pretends_to_be_the_host_gets_one_guess_and_is_named() -> None:
    evil, newcomer = Host(OTHER, server_key=EVIL_KEY), a_newcomer(server_key=EVIL_KEY)
    share = evil.say(newcomer.begin())
    assert isinstance(share, m.EnrolShare)
    assert reason(evil.say(newcomer.answer(share))) == "wrong_code"
    with pytest.raises(NotAdmitted, match="does not know the join code: it may be another machine") as caught:
        newcomer.finish(m.EnrolProved(proof=_source.randbytes(32), standing="admitted"))
    assert str(caught.value).isprintable()


def test_the_newcomers_own_proof_sent_back_is_not_the_hosts() -> None:
    host, newcomer = Host(), a_newcomer()
    share = host.say(newcomer.begin())
    assert isinstance(share, m.EnrolShare)
    mine = newcomer.answer(share).proof
    for proof in (mine, b"", mine + b"x", mine[:-1]):
        with pytest.raises(NotAdmitted):
            newcomer.finish(m.EnrolProved(proof=proof, standing="admitted"))


def test_a_replayed_enrolment_is_a_wrong_guess() -> None:
    host, newcomer = Host(), a_newcomer()
    begin = newcomer.begin()
    share = host.say(begin)
    assert isinstance(share, m.EnrolShare)
    proof = newcomer.answer(share)
    assert isinstance(host.say(proof), m.EnrolProved)
    assert reason(host.say(proof, peer=b"evil", address="10.6.6.6")) == "malformed"
    again = host.say(begin, peer=b"evil", address="10.6.6.6")
    assert isinstance(again, m.EnrolShare)
    assert again.share != share.share
    assert reason(host.say(proof, peer=b"evil", address="10.6.6.6")) == "wrong_code"
    assert len(host.proved) == 1
    assert host.guesses() == 1


def test_a_proof_without_a_begun_exchange_is_malformed_and_no_guess() -> None:
    host = Host()
    assert reason(host.say(m.EnrolProof(proof=b"p" * 32))) == "malformed"
    begin = a_newcomer().begin()
    host.say(begin, peer=b"one")
    assert reason(host.say(m.EnrolProof(proof=b"p" * 32), peer=b"another")) == "malformed"
    assert host.guesses() == 0
    assert host.attempts == []


# --- hostile input


def points() -> list[bytes]:
    """What is no good point of the curve: of small order, not on it, or not in its one form."""
    prime = 2**255 - 19
    small = [
        0,
        1,
        prime - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303021,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
        prime,
        prime + 1,
        2**255 - 1,
    ]
    encoded = [y.to_bytes(32, "little") for y in small]
    signed = [point[:31] + bytes([point[31] | 0x80]) for point in encoded]
    return encoded + signed + [b"\x02" + bytes(31), b"\x07" + bytes(31)]


def bad_shares(letter: bytes) -> list[bytes]:
    good = a_newcomer().begin().share[1:]
    other = b"B" if letter == b"A" else b"A"
    return [
        *(letter + point for point in points()),
        b"",
        letter,
        letter + good[:-1],
        letter + good + b"x",
        other + good,
        b"S" + good,
        b"\x00" + good,
        letter + good * 10,
    ]


def test_a_share_that_is_none_is_malformed_for_the_host() -> None:
    host, begin = Host(), a_newcomer().begin()
    for number, share in enumerate(bad_shares(b"A")):
        answer = host.say(msgspec.structs.replace(begin, share=share), address=f"10.0.0.{number}")
        assert reason(answer) == "malformed"
    assert host.guesses() == 0
    assert {attempt.outcome for attempt in host.attempts} == {"malformed"}


def test_a_share_that_is_none_is_malformed_for_the_newcomer() -> None:
    for share in bad_shares(b"B"):
        with pytest.raises(RemoteProtocolError) as caught:
            a_newcomer().answer(m.EnrolShare(share=share))
        assert caught.value.reason == "malformed"


def test_a_share_sent_back_is_malformed() -> None:
    party = Party("host", CODE, Claim(1, "", NODE_KEY, "", SERVER_KEY, ""), _source.randbytes)
    with pytest.raises(RemoteProtocolError):
        party.agree(b"A" + party.share[1:])


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=SHARE_BYTES - 1, max_size=SHARE_BYTES - 1))
def test_any_share_is_answered_or_malformed(point: bytes) -> None:
    host, begin = Host(), a_newcomer().begin()
    answer = host.say(msgspec.structs.replace(begin, share=b"A" + point))
    assert isinstance(answer, m.EnrolShare) or reason(answer) == "malformed"


@pytest.mark.parametrize(
    "key", ["", "x", "x" * 39, "x" * 41, "x" * 39 + " ", "x" * 39 + "\u00e9", "x" * 39 + '"', "\n" * 40]
)
def test_what_is_no_key_is_malformed(key: str) -> None:
    host = Host()
    begin = msgspec.structs.replace(a_newcomer().begin(), node_key=key)
    assert reason(host.say(begin)) == "malformed"


def test_another_protocol_is_named() -> None:
    host = Host()
    begin = msgspec.structs.replace(a_newcomer().begin(), protocol=m.PROTOCOL + 1)
    assert reason(host.say(begin)) == "protocol"


def test_a_name_that_steers_a_terminal_or_is_too_long_is_cut_and_still_proved() -> None:
    host = Host()
    newcomer = a_newcomer(name="\x1b[2J" + "n" * 500)
    share = host.say(newcomer.begin())
    assert isinstance(share, m.EnrolShare)
    assert isinstance(host.say(newcomer.answer(share)), m.EnrolProved)
    assert host.proved[0].name == "[2J" + "n" * 61
    assert host.attempts[0].text.isprintable()


def test_a_side_that_is_used_out_of_order_is_our_own_bug() -> None:
    newcomer = a_newcomer()
    with pytest.raises(LocalProtocolError):
        newcomer.finish(m.EnrolProved(proof=b"", standing="admitted"))
    share = Host().say(newcomer.begin())
    assert isinstance(share, m.EnrolShare)
    newcomer.answer(share)
    with pytest.raises(LocalProtocolError):
        newcomer.answer(share)


def test_both_proofs_depend_on_all_that_is_claimed() -> None:
    """No two claims, cut up differently, give the same proofs."""
    claims = [
        Claim(1, "v", NODE_KEY, "ab", SERVER_KEY, "c"),
        Claim(1, "v", NODE_KEY, "a", SERVER_KEY, "bc"),
        Claim(1, "va", NODE_KEY, "b", SERVER_KEY, "c"),
        Claim(1, "v", NODE_KEY, "ab" + SERVER_KEY, "", "c"),
        Claim(1, "1v", NODE_KEY, "ab", SERVER_KEY, "c"),
        Claim(11, "v", NODE_KEY, "ab", SERVER_KEY, "c"),
    ]

    def proofs(claim: Claim) -> Proofs:
        fixed = random.Random(3)
        host = Party("host", CODE, claim, fixed.randbytes)
        newcomer = Party("newcomer", CODE, claim, fixed.randbytes)
        ours, theirs = newcomer.agree(host.share), host.agree(newcomer.share)
        assert ours == theirs
        assert ours.host != ours.newcomer
        return ours

    assert len({proofs(claim) for claim in claims}) == len(claims)


# --- bounds


def test_an_exchange_that_is_never_proved_lapses() -> None:
    host, newcomer = Host(), a_newcomer()
    share = host.say(newcomer.begin(), now=0.0)
    assert host.keep(host.gate.ticked(EXCHANGE_S - 0.1)) == []
    host.keep(host.gate.ticked(EXCHANGE_S))
    assert [attempt.outcome for attempt in host.attempts] == ["lapsed"]
    assert isinstance(share, m.EnrolShare)
    late = host.say(newcomer.answer(share), now=EXCHANGE_S)
    assert reason(late) == "malformed"
    assert isinstance(late, m.Refusal)
    assert late.retry_after_s > 0
    assert host.guesses() == 0


def test_ten_thousand_begins_from_ten_thousand_peers_cost_a_bounded_memory() -> None:
    host, begin, begun, refused = Host(), a_newcomer().begin(), 0, 0
    for number in range(10_000):
        answer = host.say(begin, now=number / 1000, peer=str(number).encode(), address=f"10.1.{number}")
        if isinstance(answer, m.EnrolShare):
            begun += 1
        else:
            assert reason(answer) == "rate_limited"
            refused += 1
    lapsed = sum(attempt.outcome == "lapsed" for attempt in host.attempts)
    assert BEGIN_BURST <= begun <= BEGIN_BURST + 50
    assert begun - lapsed <= MAX_EXCHANGES
    assert len(host.attempts) == lapsed  # a flood is counted, not told line by line
    assert host.guesses() == 0


def test_an_honest_newcomer_is_not_pushed_out_by_a_flood_within_the_time_that_it_needs() -> None:
    host, honest, begin = Host(), a_newcomer(), a_newcomer().begin()
    share = host.say(honest.begin(), peer=b"honest", address="10.0.0.8")
    for number in range(1000):
        host.say(begin, now=0.5, peer=str(number).encode(), address=f"10.1.{number}")
    assert isinstance(share, m.EnrolShare)
    answer = host.say(honest.answer(share), now=0.5, peer=b"honest", address="10.0.0.8")
    assert isinstance(answer, m.EnrolProved)


def test_a_connection_that_begins_again_gives_its_first_exchange_up() -> None:
    host, first, second = Host(), a_newcomer(), a_newcomer()
    shares = [host.say(newcomer.begin()) for newcomer in (first, second)]
    assert isinstance(shares[1], m.EnrolShare)
    assert isinstance(host.say(second.answer(shares[1])), m.EnrolProved)
    assert [attempt.outcome for attempt in host.attempts] == ["lapsed", "proved"]


# --- the code's limits


def test_a_code_that_is_used_up_is_gone_until_the_owner_asks_for_another() -> None:
    host = Host(uses=2)
    assert host.enrol(CODE, key=a_key(10)) == "admitted"
    assert host.enrol(CODE, key=a_key(10)) == "admitted"  # the same one takes no second use
    assert host.gate.news(0.0).uses == 1
    assert host.enrol(CODE, key=a_key(11)) == "admitted"
    assert host.news == [m.CodeNews(code="", reason="used")]
    assert host.gate.saved_code(0.0, WALL) is None
    refused = host.enrol(CODE, key=a_key(12))
    assert reason(refused) == "no_code"
    assert isinstance(refused, m.Refusal)
    assert refused.text == "the join code is used up; ask the host's owner for a new one"
    assert host.attempts[-1].outcome == "no_code"
    host.keep(host.gate.renew("asked", 0.0))
    assert (host.news[-1].uses, host.news[-1].reason) == (2, "asked")
    assert host.enrol(host.news[-1].code, key=a_key(12)) == "admitted"


def test_two_newcomers_at_once_take_no_more_than_the_last_use() -> None:
    host = Host(uses=1)
    newcomers = [a_newcomer(key=a_key(number)) for number in (10, 11)]
    shares = [host.say(one.begin(), peer=bytes([i])) for i, one in enumerate(newcomers)]
    answers = []
    for i, (one, share) in enumerate(zip(newcomers, shares, strict=True)):
        assert isinstance(share, m.EnrolShare)
        answers.append(host.say(one.answer(share), peer=bytes([i])))
    assert isinstance(answers[0], m.EnrolProved)
    assert reason(answers[1]) == "no_code"
    assert len(host.proved) == 1


def test_a_code_that_expired_is_gone_until_the_owner_asks_for_another() -> None:
    host = Host(ttl_s=60.0)
    assert host.gate.news(20.0).ttl_s == 40.0
    assert host.enrol(CODE, now=59.9) == "admitted"
    assert reason(host.enrol(CODE, now=60.0)) == "no_code"
    assert host.news == [m.CodeNews(code="", reason="expired")]
    host.keep(host.gate.renew("asked", 100.0))
    assert host.news[-1].ttl_s == 60.0
    assert host.keep(host.gate.ticked(159.9)) == []
    assert host.keep(host.gate.ticked(160.0)) == [CodeChanged(m.CodeNews(code="", reason="expired"))]
    assert host.gate.ticked(161.0) == []


def test_a_code_that_was_guessed_at_is_replaced_within_the_same_limits() -> None:
    host = Host(uses=3, ttl_s=1000.0)
    host.enrol(CODE, key=a_key(9))
    for number in range(10):
        host.enrol(OTHER, now=float(number), address=f"10.0.1.{number}")
    [news] = host.news
    assert (news.uses, news.ttl_s, news.reason) == (2, 991.0, "guesses")
    assert host.guesses() == 0
    assert host.enrol(news.code, now=10.0, key=a_key(9)) == "admitted"  # it is in already, and takes no use
    assert host.gate.news(10.0).uses == 2


def test_a_host_without_a_code_says_so_and_makes_none() -> None:
    host = Host(code=None)
    refused = host.enrol(CODE)
    assert reason(refused) == "no_code"
    assert isinstance(refused, m.Refusal)
    assert refused.text.startswith("this host has no join code")
    assert host.gate.renew("asked", 0.0) == []
    host.gate.load_code(CodeEntry(code=CODE), 0.0, WALL)
    assert host.gate.news(0.0).code == ""


def test_a_host_whose_code_is_still_to_be_made_has_none_until_then() -> None:
    host = Host(code="", uses=7)
    assert reason(host.enrol(CODE)) == "no_code"
    host.keep(host.gate.renew("new", 0.0))
    assert host.enrol(host.news[-1].code) == "admitted"
    assert host.gate.news(0.0).uses == 6


def test_a_saved_code_goes_on_with_what_is_left_of_it() -> None:
    before = Host(uses=5, ttl_s=100.0)
    before.enrol(CODE)
    before.enrol(OTHER, address="10.0.0.7")
    entry = before.gate.saved_code(40.0, WALL)
    assert entry == CodeEntry(code=CODE, uses=4, expires_at=WALL + 60.0, guesses=1)
    after = Host(code="", uses=5, ttl_s=100.0)
    after.gate.load_code(entry, 7.0, WALL + 10.0)
    assert after.gate.news(7.0) == m.CodeNews(code=CODE, uses=4, ttl_s=50.0)
    assert after.enrol(CODE, now=7.0) == "admitted"
    after.keep(after.gate.renew("asked", 8.0))
    assert (after.news[-1].uses, after.news[-1].ttl_s) == (5, 100.0)


def test_a_clock_that_was_set_while_the_host_was_away_gives_no_code_a_longer_life() -> None:
    entry = CodeEntry(code=CODE, uses=5, expires_at=WALL + 60.0)
    back, forward = Host(code="", ttl_s=100.0), Host(code="", ttl_s=100.0)
    back.gate.load_code(entry, 0.0, WALL - 3600.0)
    assert back.gate.news(0.0).ttl_s == 100.0
    forward.gate.load_code(entry, 0.0, WALL + 3600.0)
    assert reason(forward.enrol(CODE)) == "no_code"
    assert forward.news[-1].reason == "expired"


def test_a_saved_code_without_uses_is_none() -> None:
    host = Host(code="", uses=5)
    host.gate.load_code(CodeEntry(code=CODE, uses=0), 0.0, WALL)
    assert host.gate.news(0.0) == m.CodeNews(code="", reason="used")


# --- tokens


def test_a_token_admits_as_often_and_as_long_as_it_says_also_on_a_host_without_codes() -> None:
    host = Host(code=None)
    assert host.gate.invite("t1", TOKEN_SECRET, 2, 60.0, 0.0)
    assert host.enrol(TOKEN_SECRET, key=a_key(10), token="t1") == "admitted"
    assert host.proved[-1].how == "token"
    assert host.enrol(TOKEN_SECRET, key=a_key(10), token="t1") == "admitted"
    assert [entry.uses for entry in host.gate.tokens(0.0, WALL)] == [1]
    assert host.enrol(TOKEN_SECRET, key=a_key(11), token="t1") == "admitted"
    assert reason(host.enrol(TOKEN_SECRET, key=a_key(12), token="t1")) == "no_code"
    assert host.gate.tokens(0.0, WALL) == []
    host.gate.invite("t2", TOKEN_SECRET, 2, 60.0, 0.0)
    assert host.enrol(TOKEN_SECRET, now=59.0, token="t2") == "admitted"
    assert reason(host.enrol(TOKEN_SECRET, now=60.0, token="t2")) == "no_code"
    assert host.news == []


def test_a_wrong_token_secret_slows_its_address_down_but_is_no_guess_at_the_code() -> None:
    host = Host()
    host.gate.invite("t1", TOKEN_SECRET, 1, 1e6, 0.0)
    for number in range(15):
        assert reason(host.enrol("x" * 32, address=f"10.0.1.{number}", token="t1")) == "wrong_code"
    assert reason(host.enrol("x" * 32, address="10.0.1.0", token="t1")) == "rate_limited"
    assert (host.guesses(), host.news) == (0, [])
    assert host.enrol(TOKEN_SECRET, token="t1") == "admitted"


def test_a_code_is_no_token_and_a_token_no_code() -> None:
    host = Host()
    host.gate.invite("t1", TOKEN_SECRET, 1, 1e6, 0.0)
    assert reason(host.enrol(TOKEN_SECRET, address="a")) == "wrong_code"
    assert reason(host.enrol(CODE, token="t1", address="b")) == "wrong_code"
    assert reason(host.enrol(TOKEN_SECRET, token="t2", address="c")) == "no_code"


def test_saved_tokens_go_on_with_what_is_left_of_them() -> None:
    before = Host()
    before.gate.invite("t1", TOKEN_SECRET, 3, 100.0, 0.0)
    before.gate.invite("t2", TOKEN_SECRET, 3, 20.0, 0.0)
    before.enrol(TOKEN_SECRET, token="t1")
    entries = before.gate.tokens(10.0, WALL)
    assert entries[0] == TokenEntry(id="t1", secret=TOKEN_SECRET, uses=2, expires_at=WALL + 90.0, ttl_s=100.0)
    after = Host()
    after.gate.load_tokens(entries, 5.0, WALL + 30.0)
    assert [entry.id for entry in after.gate.tokens(5.0, WALL + 30.0)] == ["t1"]
    assert after.enrol(TOKEN_SECRET, now=64.9, token="t1") == "admitted"
    assert reason(after.enrol(TOKEN_SECRET, now=65.0, token="t1")) == "no_code"
    set_back = Host()
    set_back.gate.load_tokens(entries, 0.0, WALL - 3600.0)
    assert set_back.gate.tokens(0.0, 0.0)[0].expires_at == 100.0


def test_tokens_that_are_read_again_keep_their_exchanges_and_do_not_give_uses_back() -> None:
    host, newcomer = Host(), a_newcomer(TOKEN_SECRET, token="t1")
    host.gate.invite("t1", TOKEN_SECRET, 1, 100.0, 0.0)
    share = host.say(newcomer.begin())
    host.gate.load_tokens(host.gate.tokens(0.0, WALL), 0.0, WALL)
    assert isinstance(share, m.EnrolShare)
    assert isinstance(host.say(newcomer.answer(share)), m.EnrolProved)
    assert host.gate.tokens(0.0, WALL) == []
    host.gate.load_tokens([], 0.0, WALL)
    assert reason(host.enrol(TOKEN_SECRET, token="t1")) == "no_code"


def test_tokens_are_bounded_and_expired_ones_make_room() -> None:
    host = Host()
    assert all(host.gate.invite(f"t{number}", TOKEN_SECRET, 1, 60.0, 0.0) for number in range(MAX_TOKENS))
    assert not host.gate.invite("one more", TOKEN_SECRET, 1, 60.0, 0.0)
    entries = host.gate.tokens(0.0, WALL)
    host.gate.load_tokens([*entries, msgspec.structs.replace(entries[0], id="x")], 0.0, WALL)
    assert len(host.gate.tokens(0.0, WALL)) == MAX_TOKENS
    assert host.gate.invite("one more", TOKEN_SECRET, 1, 60.0, 60.0)
    assert len(host.gate.tokens(60.0, WALL)) == 1


def test_a_new_code_is_never_one_that_somebody_could_foretell_from_the_last() -> None:
    """The gate asks for each choice anew."""
    asked: list[int] = []

    def below(limit: int) -> int:
        asked.append(limit)
        return 0

    gate = Gate(SERVER_KEY, entropy=_source.randbytes, below=below, code="", uses=None, ttl_s=None, now=0.0)
    gate.renew("asked", 0.0)
    assert asked == [99, 256, 255]
    assert gate.news(0.0).code == new_code(lambda _: 0)
