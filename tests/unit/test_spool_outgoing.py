"""A member's way of bundles while its host goes and comes: what goes to the disk, who waits, and what is said."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from p2prl.core import messages as m
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network
from p2prl.nodes import spool_file
from p2prl.nodes.outgoing import Outgoing
from p2prl.nodes.wiring import MemberConfig
from tests.unit.spool_kit import (
    Clock,
    Killed,
    Killer,
    Shards,
    bundle,
    fill_up,
    frames_of,
    member_config,
    run_spec,
)


class Life:
    """A member's life, as far as bundles go: its host is there until `host_gone`.

    Attributes:
        said: lines for people.
        credits: how often players were told that there may be room.
    """

    def __init__(
        self,
        network: Network,
        config: MemberConfig,
        shards: Shards | None = None,
        run: m.RunSpec | None = None,
        version: int = 0,
    ) -> None:
        self.clock = Clock()
        self.shards = shards or Shards()
        self.said: list[tuple[str, str]] = []
        self.version = version
        self.credits = self.made = 0
        self.silent_s = 0.0
        self.out = Outgoing(
            config,
            Loop(self.clock),
            network,
            lambda: self.version,
            self.credit,
            lambda level, source, text: self.said.append((level, text)),
        )
        self.out.pushes = self.shards  # type: ignore[assignment]
        self.out.begin(run or run_spec())
        self.listed()

    def credit(self) -> None:
        self.credits += 1

    def listed(self) -> None:
        self.out.shards(self.shards.term, self.shards.addresses())

    def make(self, count: int = 1, size: int = 100, version: int = 0) -> None:
        for _ in range(count):
            self.out.took(bundle(version), *frames_of(self.made, size))
            self.made += 1

    def seconds(self, count: int, gone: bool) -> None:
        for _ in range(count):
            self.clock.now += 1.0
            self.silent_s = self.silent_s + 1.0 if gone else 0.0
            self.out.each_second(self.silent_s)
            self.out._tick()
            if not gone:
                self.out.noted()

    def answered(self, status: str = "stored") -> int:
        """The shards look at what they got, and the member hears of it."""
        new = self.shards.take(status)
        answers, self.shards.answers = self.shards.answers, []
        for answer in answers:
            self.out.receipts(answer)
        return new

    def kill(self) -> None:
        self.out.spool.close()


@pytest.fixture(name="network")
def _network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.spool"))


def test_while_the_host_is_there_the_disk_is_not_touched(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path / "spool", 10_000))
    for _ in range(50):
        life.make(3)
        life.seconds(1, gone=False)
        life.answered()
    assert life.out.books().stored == 150
    assert not (tmp_path / "spool").exists()


def test_players_play_on_while_it_is_away_and_all_of_it_arrives_in_order(
    tmp_path: Path, network: Network
) -> None:
    life = Life(network, member_config(tmp_path, 100_000))
    life.make(6)
    assert not life.out.room, "the window is full"
    life.seconds(3, gone=True)
    assert not life.out.away
    life.seconds(1, gone=True)
    assert life.out.away
    assert life.out.spool.count == 6
    assert life.out.room
    life.make(30)
    assert (life.out.spool.count, life.out.spool.waiting, life.out.outbox.in_window) == (36, 30, 6)
    life.shards.inbox.clear()
    life.seconds(1, gone=False)
    assert not life.out.room, "those of the spool go first"
    assert life.out.waits_because == "the spool goes first: 30 bundles"
    life.shards.term += 1
    life.listed()
    arrived = 0
    while life.out.spool.waiting:
        arrived += life.answered()
    life.answered()
    assert life.out.room
    life.seconds(1, gone=False)
    assert not life.out.spool.active
    assert life.shards.numbers() == list(range(36))
    assert arrived > 20
    assert [(level, text.split(" (")[0]) for level, text in life.said] == [
        ("warning", "the host is away: sessions go to the spool until it is back"),
        ("info", "36 bundles"),
        ("info", "the spool is empty again; stored 36 of 36 bundles"),
    ]
    assert segments(tmp_path) == []


def test_a_machine_is_woken_only_while_something_waits_for_its_verdict(
    tmp_path: Path, network: Network
) -> None:
    life = Life(network, member_config(tmp_path, 10_000))
    timers = life.out._loop._timers
    for _ in range(3):
        assert timers == []
        life.make(4)
        assert len(timers) == 1
        life.answered()
        life.clock.now += 1.0
        life.out._loop._run_timers()


def test_credit_is_given_when_the_host_goes_and_when_it_is_back(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 100_000))
    life.make(6)
    before = life.credits
    life.seconds(4, gone=True)
    assert life.credits > before
    assert life.out.room


def test_a_host_that_was_only_stopped_gets_again_at_once_what_it_may_have_lost(
    tmp_path: Path, network: Network
) -> None:
    """It has the same term and the same shards as before."""
    life = Life(network, member_config(tmp_path, 0))
    life.make(4)
    life.seconds(40, gone=True)
    life.shards.inbox.clear()
    life.seconds(1, gone=False)
    assert life.answered() == 4


def test_shards_that_are_down_are_a_host_that_is_away(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 100_000))
    life.shards.boots = ["", "b1"]
    life.listed()
    life.seconds(5, gone=False)
    assert not life.out.away, "one is up"
    life.shards.boots = ["", ""]
    life.listed()
    life.seconds(5, gone=False)
    assert life.out.away
    life.make(20)
    assert life.out.spool.count == 20
    life.shards.boots = ["a2", "b2"]
    life.listed()
    life.seconds(1, gone=False)
    while life.out.outbox.pending:
        assert life.answered()
    assert life.shards.numbers() == list(range(20))


def test_without_a_spool_the_window_is_all_there_is(tmp_path: Path, network: Network) -> None:
    for config in (
        member_config(tmp_path / "s", 0),
        MemberConfig("h", 1, "k", member_config(tmp_path, 0).keys, "n", 1),
    ):
        life = Life(network, config)
        life.make(6)
        life.seconds(9, gone=True)
        assert life.out.away
        assert not life.out.room
        assert life.out.waits_because == "the window is full: 6 bundles wait for a shard"
        assert life.said == []
        assert list(tmp_path.iterdir()) == []


def test_a_full_spool_leaves_the_window_and_then_players_wait(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 3_000))
    life.seconds(4, gone=True)
    while life.out.room:
        life.make()
    assert life.out.spool.full
    assert life.out.outbox.in_window == 6, "in memory"
    spooled = life.out.spool.count
    assert life.made == spooled + 6
    assert life.out.waits_because.startswith(f"the spool is full ({spooled} bundles, ")
    life.seconds(5, gone=True)
    assert life.made == spooled + 6
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 3_000
    assert len([text for _, text in life.said if "--spool allows 3 kB" in text]) == 1
    life.seconds(1, gone=False)
    while life.out.outbox.pending:
        life.answered()
        life.seconds(1, gone=False)
    assert life.shards.numbers() == list(range(life.made))
    assert life.out.books().dropped == 0


def test_with_drop_oldest_players_play_on_and_the_oldest_are_dropped_and_counted(
    tmp_path: Path, network: Network
) -> None:
    life = Life(network, member_config(tmp_path, 3_000), run=run_spec(drops=True))
    life.seconds(4, gone=True)
    for _ in range(100):
        assert life.out.room
        life.make()
    dropped = life.out.books().dropped_reasons["spool full"]
    assert dropped > 80
    life.seconds(1, gone=False)
    while life.out.outbox.pending:
        life.answered()
    assert life.shards.numbers() == list(range(dropped, 100))
    life.seconds(1, gone=False)
    assert life.said[-1] == (
        "warning",
        f"the spool is empty again; stored {100 - dropped} of 100 bundles, {dropped} dropped",
    )


def test_what_has_grown_too_old_is_counted_stale_and_said_once(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 100_000), run=run_spec(max_lag=3))
    life.seconds(4, gone=True)
    life.make(10, version=0)
    life.make(5, version=2)
    life.version = 5
    life.seconds(1, gone=False)
    while life.out.outbox.pending:
        life.answered()
    books = life.out.books()
    assert (books.stale, books.stored) == (10, 5)
    life.seconds(3, gone=False)
    told = "stored 5 of 15 bundles, 10 stale: older than max_lag (3 versions)"
    assert life.said[-1] == ("warning", f"the spool is empty again; {told}")
    assert len([text for _, text in life.said if "stale" in text]) == 1


def test_what_was_sent_before_is_never_called_stale_here(tmp_path: Path, network: Network) -> None:
    """It may be stored: only its shard knows."""
    life = Life(network, member_config(tmp_path, 100_000), run=run_spec(max_lag=3))
    life.make(4, version=0)
    life.shards.take()
    life.shards.answers.clear()
    life.seconds(4, gone=True)
    life.kill()
    again = Life(network, member_config(tmp_path, 100_000), life.shards, run_spec(max_lag=3), version=50)
    again.seconds(1, gone=False)
    while again.out.outbox.pending:
        assert again.answered() == 0
    assert (again.out.books().stored, again.out.books().duplicate) == (4, 4)


def test_what_cannot_get_its_name_on_the_disk_is_not_sent_yet(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might be sent again under another name, by the next boot."""
    life = Life(network, member_config(tmp_path, 100_000))
    life.seconds(4, gone=True)
    life.make(3)

    def broken(file: FileIO, data: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(spool_file, "write_all", broken)
        life.seconds(3, gone=False)
    assert life.shards.inbox == []
    assert life.shards.wanted == [], "it is not their sockets that take nothing"
    assert len([text for _, text in life.said if "Input/output error" in text]) == 1
    life.seconds(2, gone=False)
    assert life.answered() == 3


# --- over restarts


def test_a_killed_member_goes_on_where_it_was(tmp_path: Path, network: Network) -> None:
    config = member_config(tmp_path, 100_000)
    life = Life(network, config)
    life.make(10)
    life.answered()
    life.seconds(4, gone=True)
    life.make(20)
    life.kill()
    second = Life(network, config, life.shards)
    assert second.out.continues == life.out.boot_id
    assert (second.out.books().produced, second.out.steps, second.out.episodes) == (30, 150, 30)
    assert second.out.books().dropped == 0
    second.seconds(4, gone=True)
    second.made = 30
    second.make(5)
    second.kill()
    third = Life(network, config, life.shards)
    assert third.out.continues == life.out.boot_id, "the account's name stays"
    assert third.out.boot_id not in (life.out.boot_id, second.out.boot_id)
    while third.out.outbox.pending:
        third.answered()
    assert life.shards.numbers() == list(range(35))
    assert (third.out.books().produced, third.out.books().stored) == (35, 35)
    assert {boot for _, boot, _ in life.shards.kept} <= {one.out.boot_id for one in (life, second, third)}


def test_whichever_write_it_is_killed_at_nothing_is_lost_or_doubled(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer()
    killer.patch(monkeypatch)
    for at in range(200):
        config = member_config(tmp_path / str(at), 100_000)
        life = Life(network, config)
        killer.writes = at
        try:
            life.make(4)
            life.shards.take()  # the receipts never come
            life.shards.answers.clear()
            life.seconds(4, gone=True)
            life.make(6)
            life.seconds(1, gone=False)
            life.answered()
            life.answered()
        except Killed:
            pass
        else:
            killer.writes = None
            break
        life.kill()
        again = Life(network, config, life.shards)
        books = again.out.books()
        assert books.balanced()
        missing = set(range(life.made)) - set(life.shards.numbers())
        while again.out.outbox.pending:
            again.answered()
        after = again.out.books()
        numbers = life.shards.numbers()
        assert len(numbers) == len(set(numbers))
        if again.out.continues:
            lost = after.dropped_reasons.get("member died", 0)
            assert after.produced in (life.made, life.made + 1)
            # What was stored, and lost here before it was on this disk, the host knows from its receipts.
            assert after.stored + lost == after.produced
            assert len(missing - set(numbers)) <= lost
    else:
        raise AssertionError("the scenario never came to its end")
    assert at > 20


def test_what_is_stored_from_memory_while_the_spool_is_in_use_is_in_the_books_on_disk(
    tmp_path: Path, network: Network
) -> None:
    life = Life(network, member_config(tmp_path, 2_000))
    life.make(5, size=300)
    life.seconds(4, gone=True)
    in_memory = life.out.outbox.in_window - life.out.spool.count
    assert in_memory > 0
    life.answered()
    assert life.out.spool.active
    life.kill()
    again = Life(network, member_config(tmp_path, 2_000), life.shards)
    books = again.out.books()
    assert (books.produced, books.stored, books.dropped) == (5, 5, 0)


def test_a_clean_end_keeps_what_has_no_receipt(tmp_path: Path, network: Network) -> None:
    config = member_config(tmp_path, 100_000)
    life = Life(network, config)
    life.make(5)
    life.shards.take()
    life.out.receipts(life.shards.answers[0])
    life.out.close()
    assert life.out.keep() == (4, 0)
    assert life.out.books().pending == 4
    again = Life(network, config, life.shards)
    assert again.out.continues == life.out.boot_id
    while again.out.outbox.pending:
        again.answered()
    assert again.out.books().stored == 5
    assert life.shards.numbers() == list(range(5))


def test_a_clean_end_without_anything_to_keep_leaves_nothing(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path / "spool", 100_000))
    life.make(5)
    life.answered()
    life.out.close()
    assert life.out.keep() == (0, 0)
    assert not (tmp_path / "spool").exists()


def test_on_closing_nothing_more_is_taken_out(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 100_000))
    life.seconds(4, gone=True)
    life.make(20)
    life.out.close()
    life.seconds(2, gone=False)
    assert life.out.outbox.in_flight == 0
    assert life.out.keep() == (20, 0)


def test_without_room_on_the_disk_the_end_loses_what_it_always_lost(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = fill_up(monkeypatch)
    life = Life(network, member_config(tmp_path, 100_000))
    life.make(5)
    disk.room = 300
    assert life.out.keep() == (1, 4)


def test_another_run_gets_nothing_of_this_one(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 100_000))
    life.make(5)
    boot_id = life.out.boot_id
    assert life.out.forget_run() == (5, 0)
    assert life.out.boot_id != boot_id
    assert life.out.books() == m.Books()
    assert (life.out.spool.active, life.out.steps, life.out.continues) == (False, 0, "")
    assert len(segments(tmp_path)) == 1


def test_a_grant_holds_the_spool_back_too(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path, 100_000))
    life.seconds(4, gone=True)
    life.make(10)
    life.out.granted(8)
    life.seconds(1, gone=False)
    assert life.out.outbox.in_flight == 1
    assert life.out.outbox.in_window == 2
    life.out.granted(0)
    life.shards.inbox.clear()
    life.seconds(3, gone=False)
    assert life.out.outbox.in_window == 2


def test_refused_bundles_are_told_with_their_count_not_one_by_one(tmp_path: Path, network: Network) -> None:
    life = Life(network, member_config(tmp_path / "spool", 10_000))
    for _ in range(20):
        life.make(2)
        life.answered("refused")
        life.seconds(1, gone=False)
    assert life.out.books().refused == 40
    told = [text for level, text in life.said if "refused a bundle" in text]
    assert len(told) == 2
    assert told[1] == f"{told[0]} (10 times so far)"
