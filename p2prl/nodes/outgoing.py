"""A member's bundles on their way to the shards: its window, and its spool for while they are away.

While the host is there no bundle touches the disk. Once it is away, what is in the window is written to the spool, and
so is what is played from then on; all of it goes out, oldest first, when the host is back. Until the spool is empty
everything passes through it: the disk knows what has no verdict yet, and a member that is killed goes on where it was.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from p2prl.core import messages as m
from p2prl.core.outbox import Effect, Forget, Name, Outbox, Send
from p2prl.core.spool import Account, Rules, is_away
from p2prl.net.loop import Loop, Timer
from p2prl.net.sockets import Frame, Network
from p2prl.nodes.pushes import Pushes
from p2prl.nodes.spool import Spool
from p2prl.nodes.spool_file import Entry
from p2prl.nodes.wiring import MemberConfig
from p2prl.wire import frames
from p2prl.words import Repeats, many, sized

_TICK_S = 0.02
#: Bundles that are taken out of the spool before others are looked after.
_PER_TURN = 500


@dataclass(slots=True)
class _Held:
    """A bundle in the window."""

    header: Frame
    payload: Frame
    #: What the spool has to know of it; None if it comes from there.
    bundle: m.PlayerBundle | None = None
    entry: Entry | None = None
    name: Name | None = None
    #: It only passes through the spool, which is in use because of others.
    passes: bool = False


class Outgoing:
    """Bundles from `took` to their verdicts.

    Args:
        current: gives the newest weights version that is known.
        credit: called when players may hand over more.
        say: gets (level, source, text) for people.

    Attributes:
        boot_id: names this member's life, or its part for one run.
        steps, episodes: of the books' account.
        away: the host is not there, and bundles go to the spool.
        trainer: why the trainer takes nothing, by the host's last word; empty if it is only behind.
    """

    def __init__(
        self,
        config: MemberConfig,
        loop: Loop,
        network: Network,
        current: Callable[[], int],
        credit: Callable[[], None],
        say: Callable[[str, str, str], None],
    ) -> None:
        self._config = config
        self._loop = loop
        self.pushes = Pushes(config, loop, network)
        self._current, self._credit, self._say = current, credit, say
        self._tokens = itertools.count()
        self._ticks: Timer | None = None
        self._reset()

    def _reset(self) -> None:
        self.boot_id = self.account = secrets.token_hex(8)
        self.run: m.RunSpec | None = None
        self.steps = self.episodes = 0
        self.away, self.trainer, self._closing = False, "", False
        self.outbox = Outbox(1, 1)
        self.spool = self._open_spool("", Rules(0, 0), None)
        self._held: dict[int, _Held] = {}
        self._up_at = self._loop.now()
        #: The books changed in a way that the bundles in the spool do not tell.
        self._unnoted = False
        #: What became of spooled bundles since the spool came into use.
        self._ended: Counter[str] = Counter()
        self._refusals = Repeats()

    def _open_spool(self, run_id: str, rules: Rules, root: Path | None) -> Spool:
        def say(level: str, text: str) -> None:
            self._say(level, "member", text)

        key = self._config.server_key
        return Spool(root, key, run_id, rules, self._account, self._given_up, say)

    # --- a run begins and ends

    def begin(self, run: m.RunSpec) -> None:
        """The host welcomed us to this run; `continues` is known from now on."""
        config = self._config
        rules = Rules(config.spool_bytes, config.keep_free_bytes, run.when_full == "drop_oldest", run.max_lag)
        self.run = run
        self._up_at = self._loop.now()
        root = Path(config.spool_folder) if config.spool_folder else None
        self.spool = self._open_spool(run.run_id, rules, root)
        books = None if (old := self.spool.recovered) is None else old.books
        self.outbox = Outbox(run.window_bytes, run.window_bundles, books=books, fresh=run.fresh)
        if old is None:
            return
        self.account = old.name or self.boot_id
        self.steps, self.episodes = old.steps, old.episodes
        self.spool.note()
        self._say_what_waits("found in the spool")

    @property
    def continues(self) -> str:
        """The boot whose books go on in ours; empty if none do."""
        return self.account if self.account != self.boot_id else ""

    def forget_run(self) -> tuple[int, int]:
        """The host has another run now; returns as `keep`."""
        result = self.keep()
        self._reset()
        return result

    def close(self) -> None:
        """No more is taken out of the spool; what is under way may still get its verdict."""
        self._closing = self.outbox.leaving = True

    def keep(self) -> tuple[int, int]:
        """Bring to the disk what has no verdict, and let go of it; returns bundles kept, and those that are lost."""
        if self.outbox.pending and self.spool.begin():
            self.spool.look()
            self._spool_window()
        if self.spool.active:
            self.spool.note()
            self.spool.clear()
        self.spool.close()
        return self.spool.count, self.outbox.pending - self.spool.count

    # --- what can be seen

    def books(self) -> m.Books:
        """Where every bundle went."""
        return self.outbox.books()

    @property
    def room(self) -> bool:
        """True if players may hand over more."""
        spool = self.spool
        if spool.active and self.away and not spool.full:
            return True
        if spool.active and not self.away and spool.waiting:
            return False  # those that wait go first
        return self.outbox.room

    @property
    def waits_because(self) -> str:
        """Why players get no credit; empty if they do."""
        spool = self.spool
        if self.room:
            return ""
        if spool.active and self.away:
            held = f"{many(spool.count, 'bundle')}, {sized(spool.size_bytes)}"
            return f"the spool is full ({held}): players wait for the host"
        if spool.active and spool.waiting:
            return f"the spool goes first: {many(spool.waiting, 'bundle')}"
        if self.outbox.gated:
            return f"{self.trainer or 'the trainer is behind'}: players wait for it"
        return f"the window is full: {many(self.outbox.pending, 'bundle', 'waits', 'wait')} for a shard"

    def _account(self) -> Account:
        return Account(self.account, self.outbox.books(), self.steps, self.episodes)

    # --- what players make

    def took(self, bundle: m.PlayerBundle, header: Frame, payload: Frame) -> None:
        """A player handed over a bundle."""
        now, size = self._loop.now(), memoryview(header).nbytes + memoryview(payload).nbytes
        entry, at_once = None, False
        if self.spool.active or (self.away and self.spool.begin()):
            at_once = not self.away and not self.spool.waiting and self.outbox.room
            entry = self.spool.add(bundle, header, payload, self._current(), held=at_once)
        self._count(bundle.steps, bundle.episodes)
        if entry is None:
            self._unnoted = True
            effects = self.outbox.produced(
                self._hold(_Held(header, payload, bundle)), size, bundle.ticks, now
            )
            self._apply(effects)
            return
        self.outbox.put_outside()
        if at_once:
            token = self._hold(_Held(header, payload, entry=entry, passes=True))
            self._apply(self.outbox.taken_in(token, size, bundle.ticks, None, now))

    def dropped(self, message: m.PlayerDropped) -> None:
        """A player dropped some of its own."""
        self._count(message.steps, message.episodes)
        self.outbox.dropped("window full", message.bundles)
        self._unnoted = True

    def _count(self, steps: int, episodes: int) -> None:
        self.steps += steps
        self.episodes += episodes

    def _hold(self, held: _Held) -> int:
        token = next(self._tokens)
        self._held[token] = held
        return token

    # --- what the host says

    def shards(self, term: int, shards: Sequence[m.ShardAddress]) -> None:
        """The shards as they are now."""
        self.pushes.listed(shards)
        self._apply(self.outbox.shards_listed(term, shards, self._loop.now()))
        self._refill()

    def granted(self, grant: int | None) -> None:
        """How many ticks may be without a verdict."""
        self._apply(self.outbox.granted(grant, self._loop.now()))
        self._credit()

    def receipts(self, receipts: m.Receipts) -> None:
        """Verdicts, on bundles of this boot or of an earlier one."""
        boot_id = "" if receipts.boot_id == self.boot_id else receipts.boot_id
        word = (receipts.shard, receipts.verdicts, receipts.grant_ticks, self._loop.now(), boot_id)
        self._apply(self.outbox.settled(*word))
        self._refill()

    # --- time

    def each_second(self, silent_s: float) -> None:
        """Look whether the host is there, and whether the disk is.

        Args:
            silent_s: since the broker said anything.
        """
        if self.run is None:
            return
        now = self._loop.now()
        if self.outbox.up:
            self._up_at = now
        was_away, self.away = self.away, is_away(silent_s, now - self._up_at)
        if self.away and self._held:
            self.spool.begin()
        self.spool.look()
        if self.spool.active:
            self._spool_window()
        if self.away and not was_away and self.spool.enabled:
            bound = sized(self.spool.rules.bound_bytes)
            text = f"the host is away: sessions go to the spool until it is back (at most {bound})"
            self._say("warning", "member", text)
        if was_away and not self.away:
            self._say_what_waits("go to the host first")
            self._apply(self.outbox.host_back(now))
        self._refill()
        self._credit()

    def noted(self) -> None:
        """The host was told of our books: what is no longer needed of the spool may go."""
        if self.away or self.spool.count or not self.spool.active:
            return
        ended, self._ended = self._ended, Counter()
        self.spool.clear()
        if not ended.total() or self.run is None:
            return
        stored = ended["stored"] + ended["duplicate"]
        text = f"the spool is empty again; stored {stored:,} of {many(ended.total(), 'bundle')}"
        if ended["stale"]:
            text += f", {ended['stale']} stale: older than max_lag ({many(self.run.max_lag, 'version')})"
        text += "".join(f", {ended[status]} {status}" for status in ("refused", "dropped") if ended[status])
        self._say("info" if stored == ended.total() else "warning", "member", text)

    def _say_what_waits(self, what: str) -> None:
        if self.spool.count:
            size = sized(self.spool.size_bytes)
            self._say("info", "member", f"{many(self.spool.count, 'bundle')} ({size}) {what}")

    def _spool_window(self) -> None:
        """What is in memory alone goes to the disk too, as far as there is room; and the books."""
        if self._unnoted and self.spool.note():
            self._unnoted = False
        for held in self._held.values():
            if held.bundle is None or held.entry is not None or self._unnoted:
                continue
            held.entry = self.spool.add(
                held.bundle,
                held.header,
                held.payload,
                self._current(),
                name=held.name,
                counted=True,
                held=True,
            )
            if held.entry is None:
                break
        self.spool.note()

    def _tick(self) -> None:
        self._apply(self.outbox.ticked(self._loop.now()))
        self._refill()
        if not self.outbox.in_window and self._ticks is not None:
            self._ticks.cancel()
            self._ticks = None

    # --- sending

    def _refill(self) -> None:
        """Take bundles out of the spool, as many as the window has room for."""
        before = self.spool.count
        for _ in range(_PER_TURN):
            if self.away or self._closing or not self.spool.waiting or not self.outbox.room:
                break
            entry = self.spool.next()
            if entry is None:
                break
            self._take_in(entry)
        if self.spool.count != before:
            self.spool.tidy()

    def _take_in(self, entry: Entry) -> None:
        record = entry.record
        if record.name is None and self.spool.rules.is_stale(record.version, self._current()):
            self.spool.settle(entry, "stale")
            self.outbox.grown_stale()
            self._ended["stale"] += 1
            return
        read = self.spool.load(entry)
        if read is None:
            return
        token = self._hold(_Held(*read, entry=entry))
        size = record.header_bytes + record.payload_bytes
        self._apply(self.outbox.taken_in(token, size, record.ticks, record.name, self._loop.now()))

    def _given_up(self, reason: str) -> None:
        self.outbox.given_up(reason)
        self._ended["dropped"] += 1

    def _apply(self, effects: list[Effect]) -> None:
        settled = False
        blocked: set[int] = set()
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect, blocked)
            elif isinstance(effect, Forget):
                settled = True
                self._forget(effect)
        if settled:
            self.spool.tidy()
            if self._unnoted and self.spool.active and self.spool.note():
                self._unnoted = False
            self._credit()
        # Only while something waits for its verdict: a machine that is lent should not be woken for nothing.
        if self.outbox.in_window and self._ticks is None:
            self._ticks = self._loop.every(_TICK_S, self._tick)

    def _forget(self, effect: Forget) -> None:
        held = self._held.pop(effect.token)
        if held.entry is None:
            self._unnoted = True
        else:
            self.spool.settle(held.entry, effect.status, effect.reason)
            self._ended[effect.status] += not held.passes
        if effect.status == "refused" and (told := self._refusals.told(f"refused a bundle: {effect.reason}")):
            self._say("warning", "host", told)

    def _send(self, send: Send, blocked: set[int]) -> None:
        # In order per shard: once it takes nothing, what follows waits too.
        if send.shard not in blocked:
            named = self._name(send)
            if named and self._push(send):
                return
            blocked.add(send.shard)
            if named:  # else it is the disk that takes nothing
                self.pushes.when_writable(send.shard, self._writable)
        self.outbox.send_failed(send.shard, send.seq, self._loop.now(), send.boot_id)

    def _writable(self, shard: int) -> None:
        self._apply(self.outbox.writable(shard, self._loop.now()))

    def _name(self, send: Send) -> bool:
        """Before it is sent for the first time, the spool has to know its name; False if it could not be written."""
        held = self._held[send.token]
        held.name = Name(send.shard, send.boot_id or self.boot_id, send.seq)
        entry = held.entry
        return entry is None or entry.record.name is not None or self.spool.assign(entry, held.name)

    def _push(self, send: Send) -> bool:
        assert self.run is not None
        held, boot_id = self._held[send.token], send.boot_id or self.boot_id
        delivery = m.Delivery(run_id=self.run.run_id, boot_id=boot_id, seq=send.seq)
        return self.pushes.send(send.shard, [frames.encode(delivery), held.header, held.payload])
