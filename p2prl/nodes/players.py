"""The players under a member: their processes, their socket, their credit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from p2prl.core import messages as m
from p2prl.core.credit import GATHER_S, Credit
from p2prl.core.weight_sync import WeightSync
from p2prl.errors import RemoteProtocolError
from p2prl.net import ipc
from p2prl.net.keys import KeyPair, new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Frame, Limits, Network, Socket
from p2prl.nodes.child import ONE_THREAD, Child, Exited, LogLine, end_all
from p2prl.nodes.grace import PLAYERS_S, more_s
from p2prl.nodes.process import ChildEvent
from p2prl.nodes.slot import LOADING, SLOW_TICK_S, WAITS, Slot, slow_advice
from p2prl.nodes.wiring import PlayerConfig
from p2prl.python_warnings import Once
from p2prl.wire import frames
from p2prl.wire.keyframes import Stock

_LIMITS = Limits(message_bytes=-1, send_messages=10, receive_messages=100)
#: What players said that is taken before others are looked after.
_PER_TURN = 200
_BACKOFF_S, _BACKOFF_MAX_S = 0.5, 30.0
#: A player that lived this long is forgiven its earlier failures.
_SOUND_S = 60.0
#: So many failures in a row are worth a word of their own.
_LOOP = 3
#: Failures of environments are told the first, tenth, ... time: they may come each second.
_TOLD = frozenset(10**power for power in range(10))


class Players:
    """Starts, watches and restarts the players of one member.

    Args:
        took: gets each bundle: the PlayerBundle, the header frame and the payload.
        moved: called when a player is further in a bundle that takes long.
        room: says whether the window takes more, beside so many ticks that players are at; without, players get no
            credit.
        dropped: gets what a player dropped because the window was full.
        failed: gets each failure that a player reports, or that it died of.
        evaluated: gets what players say of evaluation jobs, in the name of those that ended with one, too; and whether
            a failure may be the job's fault.
        say: gets (level, source, text) for people.
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        make_config: Callable[[m.Seat, int, str, KeyPair, str], PlayerConfig],
        took: Callable[[m.PlayerBundle, Frame, Frame], None],
        moved: Callable[[], None],
        room: Callable[[int], bool],
        dropped: Callable[[m.PlayerDropped], None],
        failed: Callable[[m.PlayerFailed], None],
        evaluated: Callable[[m.PlayerEvaluated, bool], None],
        say: Callable[[str, str, str], None],
    ) -> None:
        self._loop = loop
        self._make_config = make_config
        self._took, self._moved, self._room, self._dropped = took, moved, room, dropped
        self._failed, self._say = failed, say
        self._evaluated = evaluated
        self._slots: dict[int, Slot] = {}
        self.sync = WeightSync()
        self.stock = Stock()
        self.hellos: list[m.PlayerHello] = []
        self._warned, self._told_slow = Once(), False
        #: Keys that may connect where there is no ipc; each player has its own.
        self.keys: set[str] = set()
        self._server_keys: KeyPair | None = None
        self._socket = self._listen(network)
        loop.on_readable(self._socket, self._on_player)
        self._timer = loop.every(0.1, self._watch)

    def _listen(self, network: Network) -> Socket:
        self._folder = ipc.new_folder() if os.name == "posix" else None
        if self._folder is not None:
            self._endpoint = f"ipc://{ipc.socket_in(self._folder)}"
            return network.server("router", [self._endpoint], None, _LIMITS)
        self._server_keys = new_key_pair()
        socket = network.server("router", ["tcp://127.0.0.1:*"], self._server_keys, _LIMITS)
        self._endpoint = socket.bound
        return socket

    # --- what can be seen

    def reports(self) -> list[m.PlayerReport]:
        """One row per player."""
        return [slot.report(self._loop.now()) for slot in self._slots.values()]

    @property
    def under_way(self) -> int:
        """Steps of bundles that are being played, and take long."""
        return sum(slot.under_way for slot in self._slots.values())

    @property
    def version(self) -> int:
        """The oldest weights version that any player plays with; -1 while one has none."""
        return min((slot.version for slot in self._slots.values()), default=-1)

    # --- orders

    def seat(self, seats: list[m.Seat]) -> None:
        """Have exactly these players; those whose seat changed are replaced."""
        if [slot.seat for slot in self._slots.values()] == seats:
            return
        self.stop()
        for index, seat in enumerate(seats):
            self._slots[index] = Slot(seat)
            self._start(self._slots[index])

    def weights(self, header: m.WeightsHeader, payload: Frame) -> None:
        """New weights for everyone, if they can be used here; else they are to be asked for whole.

        Raises:
            RemoteProtocolError: `malformed`.
        """
        if header.version <= self.sync.version:
            return
        if not self.stock.take(header, payload):
            self.sync.useless(header.version, self._loop.now())
        elif self.sync.arrived(header.version, len(payload)):
            self._send_weights()

    def forget_run(self) -> None:
        """End all players; another run begins."""
        self.stop()
        self.sync.reset()
        self.stock.clear()

    def evaluate(self, job: m.EvalJob, payload: Frame) -> bool:
        """Give an evaluation job to a player that has none; False if there is none."""
        free = [slot for slot in self._slots.values() if slot.ready and slot.route and slot.job is None]
        if not free:
            return False
        # Who explores most: the least exploring slots are the run's own measure.
        slot = max(free, key=lambda one: one.seat.rank)
        slot.job = job.job
        return self._send(slot, [frames.encode(job), payload])

    def drop_job(self, job: int) -> None:
        """An evaluation job is not wanted any more."""
        for slot in self._slots.values():
            if slot.job == job:
                slot.job = None
                self._send(slot, [frames.encode(m.EvalDrop(job=job))])

    def give_credit(self) -> None:
        """The window may have room again."""
        for index, slot in self._slots.items():
            # Several share the room: what is told to one early would be another's.
            early = len(self._slots) == 1 and slot.ready and slot.credit.early
            if (early or slot.credit.due) and self._room(slot.envs * slot.ticks if early else 0):
                if not early:  # it waited; many versions may have come meanwhile
                    self.sync.player_between_bundles(index)
                self._send_weights()  # before it plays on
                credit = slot.credit.give(self._loop.now())
                self._send(slot, [frames.encode(m.PlayerCredit(serial=slot.serial, credit=credit))])

    def stop(self) -> None:
        """End all players, by force if that takes too long, or where nothing was begun."""
        seated = [(slot.child, slot.ready) for slot in self._slots.values() if slot.child is not None]
        for child in (child for child, ready in seated if not ready):
            child.kill()
        end_all([child for child, ready in seated if ready], PLAYERS_S + more_s(len(seated)))
        for index, slot in self._slots.items():
            self.sync.player_left(index)
            self._drain(slot, index)
            self._lose_job(slot, died=False)
        self._slots.clear()

    def close(self) -> None:
        """End all players and remove the socket."""
        self._timer.cancel()
        self.stop()
        self._loop.forget(self._socket)
        self._socket.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- inside

    def _start(self, slot: Slot) -> None:
        keys, server_key = KeyPair("", ""), ""
        if self._server_keys is not None:
            keys, server_key = new_key_pair(), self._server_keys.public
            self.keys.add(keys.public)
        config = self._make_config(slot.seat, slot.starts, self._endpoint, keys, server_key)
        slot.envs, slot.ticks = config.slots, config.run.schema.ticks
        slot.child = Child("player", config, env=ONE_THREAD)
        slot.ready, slot.route, slot.serial, slot.credit = False, b"", 0, Credit(config.run.fresh)
        slot.version = slot.keyframe = -1
        slot.own_failures, slot.under_way, slot.begun_at, slot.played_from = 0, 0, None, None
        slot.failed = slot.printed = ""
        if slot.deaths < _LOOP:  # else it is more telling why the last one ended
            slot.reason = LOADING
        slot.starts += 1
        slot.started_at = self._loop.now()

    def _on_player(self) -> None:
        for _ in range(_PER_TURN):
            received = self._socket.receive()
            if received is None:
                if any(slot.credit.gathers for slot in self._slots.values()):
                    self._loop.rest(self._socket, GATHER_S)
                break
            try:
                message = frames.decode_from_player(received.frames[0])
            except RemoteProtocolError as error:
                self._say("error", "member", f"a player said something that is not a message: {error}")
                continue
            index = self._index(message.rank)
            if index is None:
                continue  # of a player that was replaced
            slot = self._slots[index]
            if isinstance(message, m.PlayerBundle | m.PlayerProgress) and received.peer != slot.route:
                continue  # of the one who sat here before
            if isinstance(message, m.PlayerBundle):
                self._bundle(index, slot, message, received.frames)
            elif isinstance(message, m.PlayerProgress):
                self._progress(index, slot, message)
            elif isinstance(message, m.PlayerHello):
                self._hello(index, slot, message, received.peer)
            elif isinstance(message, m.PlayerDropped):
                slot.steps += message.steps
                self.sync.player_between_bundles(index)
                self._dropped(message)
            elif isinstance(message, m.PlayerEvaluated):
                self._evaluation(slot, message)
            else:
                self._failure(slot, message)
        self._send_weights()

    def _index(self, rank: int) -> int | None:
        for index, slot in self._slots.items():
            if slot.seat.rank == rank:
                return index
        return None

    def _hello(self, index: int, slot: Slot, hello: m.PlayerHello, route: bytes) -> None:
        slot.route, slot.ready, slot.keyframe = route, True, -1
        if slot.deaths < _LOOP:
            slot.reason = WAITS
        self.sync.player_left(index)
        self.sync.player_joined(index)
        self.hellos = [*self.hellos[-50:], hello]

    def _bundle(self, index: int, slot: Slot, bundle: m.PlayerBundle, parts: list[Frame]) -> None:
        slot.serial, slot.under_way = bundle.serial, 0
        slot.version = max(slot.version, bundle.version)  # what plays the next one may be told already
        slot.steps += bundle.steps
        slot.moved(self._loop.now())
        self._environments_failed(slot, bundle)
        self.sync.player_between_bundles(index)
        if bundle.warning:
            self._say("warning", f"player {slot.seat.rank}", bundle.warning)
        slot.credit.took(len(parts[2]))
        self._took(bundle, parts[1], parts[2])
        self.give_credit()

    def _progress(self, index: int, slot: Slot, progress: m.PlayerProgress) -> None:
        slot.version = max(slot.version, progress.version)
        self.sync.player_took(index, progress.version)
        slot.began(self._loop.now())
        if progress.steps > slot.under_way:
            self._look_at_pace(slot)
            slot.moved(self._loop.now())
            self._moved()
        slot.under_way = progress.steps

    def _look_at_pace(self, slot: Slot) -> None:
        """Say once what slow environments mean; the first step shows it."""
        tick_s = slot.first_step_s(self._loop.now())
        if tick_s >= SLOW_TICK_S and not self._told_slow:
            self._told_slow = True
            self._say("warning", "member", slow_advice(tick_s, slot.envs, slot.ticks))

    def _environments_failed(self, slot: Slot, bundle: m.PlayerBundle) -> None:
        """Count what this player's environments raised while it played on."""
        for _ in range(bundle.failures - slot.own_failures):
            slot.failures += 1
            if slot.failures in _TOLD:
                times = f" ({slot.failures:,} times so far)" if slot.failures > 1 else ""
                self._say("warning", f"player {slot.seat.rank}", bundle.failure + times)
                self._failed(
                    m.PlayerFailed(rank=slot.seat.rank, kind="environment", text=bundle.failure + times)
                )
        slot.own_failures = bundle.failures

    def _evaluation(self, slot: Slot, said: m.PlayerEvaluated) -> None:
        if said.job != slot.job:
            return  # it was dropped meanwhile
        if said.over:
            slot.job = None
        if said.failure:
            self._say("warning", f"player {slot.seat.rank}", said.failure)
        self._evaluated(said, bool(said.failure))

    def _lose_job(self, slot: Slot, died: bool) -> None:
        """The player ended; whoever waits for its job is told."""
        if slot.job is None:
            return
        lost, slot.job = slot.job, None
        why = f"the player of evaluation job {lost} ended"
        said = m.PlayerEvaluated(
            rank=slot.seat.rank, job=lost, steps=0, over=True, failure=why, kind="player"
        )
        self._evaluated(said, died)

    def _failure(self, slot: Slot, failure: m.PlayerFailed) -> None:
        slot.reason = slot.failed = failure.text
        if failure.kind == "environment":
            slot.failures += 1
        if not failure.hopeless:
            self._say("warning", f"player {slot.seat.rank}", failure.text)
        self._failed(failure)

    def _send_weights(self) -> None:
        for index in self.sync.to_send():
            slot = self._slots[index]
            if self._send(slot, self.stock.parts_for(slot.keyframe)):
                slot.keyframe = self.stock.keyframe

    def _send(self, slot: Slot, parts: list[Frame]) -> bool:
        return bool(slot.route) and self._socket.send(parts, slot.route)

    def _watch(self) -> None:
        now = self._loop.now()
        for index, slot in self._slots.items():
            if slot.child is None:
                if now >= slot.due:
                    self._start(slot)
                continue
            exited = self._drain(slot, index)
            if exited is not None:
                self._plan_restart(slot, exited, now)

    def _drain(self, slot: Slot, index: int) -> Exited | None:
        """Pass on what the child said; how it ended, if it has."""
        ended = None
        for news in slot.child.news() if slot.child is not None else ():
            source = f"player {slot.seat.rank}"
            if isinstance(news, LogLine):
                slot.printed = news.text
                # A library's warning comes again with each player and each start of one.
                if news.level != "WARNING" or self._warned.first(news.text):
                    self._say(news.level.lower(), source, news.text)
            elif isinstance(news, ChildEvent):
                slot.reason = news.text or slot.reason
            elif isinstance(news, Exited):
                ended = news
                self.sync.player_left(index)
        return ended

    def _plan_restart(self, slot: Slot, exited: Exited, now: float) -> None:
        assert slot.child is not None
        slot.child.wait(0.0)
        slot.child = None
        slot.ready, slot.route, slot.under_way = False, b"", 0
        self._lose_job(slot, died=True)
        if now - slot.started_at >= _SOUND_S:
            slot.deaths = 0
        slot.deaths += 1
        delay_s = min(_BACKOFF_S * 2 ** min(slot.deaths - 1, 10), _BACKOFF_MAX_S)
        if slot.played_from is not None:  # half of the time for play is better than a tenth
            delay_s = min(delay_s, max(_BACKOFF_S, now - slot.played_from))
        slot.due = now + delay_s
        if not self._loop.stopping():
            self._mourn(slot, exited, delay_s)

    def _mourn(self, slot: Slot, exited: Exited, delay_s: float) -> None:
        """Say that a player ended by itself, and why; the host is told what the player did not tell it."""
        rank = slot.seat.rank
        why = slot.failed
        if not why:
            how = f"died ({exited})" + (f"; its last line: {slot.printed}" if slot.printed else "")
            self._failed(m.PlayerFailed(rank=rank, kind="player", text=how))  # told as "player: died ..."
            why = f"the player {how}"
        slot.reason = why
        text = f"ended ({exited}); it will be started again in {delay_s:.1f} s"
        if slot.deaths >= _LOOP:
            text += f": it ended {slot.deaths} times in a row"
            slot.reason = f"ended {slot.deaths} times in a row: {why}"
        self._say("warning", f"player {rank}", text)
