"""What trust costs: bundles per second into one shard, with CURVE, receipts and the log, and with one of them left out.

One sending process with the member's Outbox, one receiving process with a real ShardStore, loopback, the same 256
bundles of CartPole sessions again and again (16 slots of 64 ticks) under new numbers. A way without receipts hands each
bundle to its socket once and forgets it, as plain PUSH does. Receipts go straight back here; in a run the broker passes
them on. Each way runs three times, in turn; the table has medians.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bench_parts._lan import finish, machine, options, say, table
from p2prl.core import messages as m
from p2prl.core.outbox import Outbox, Send
from p2prl.core.schema import Column, SessionSchema
from p2prl.net.keys import KeyPair, new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Limits, Network, Socket
from p2prl.replay.params import ReplayParams
from p2prl.replay.shard import ShardStore
from p2prl.wire import frames
from p2prl.wire.bundle import encode_bundle

RUN, TURNS = "bench", 3
SLOTS, TICKS = 16, 64
SCHEMA = SessionSchema(
    ticks=TICKS,
    columns=(
        Column("obs", "float32", (4,), extra_row=True),
        Column("action", "uint8", (), low=(0.0,), high=(1.0,)),
        Column("reward", "float32", ()),
        Column("flags", "uint8", ()),
    ),
)
#: As in nodes/pushes.py and nodes/shard.py.
_PUSH = Limits(message_bytes=1_000, send_messages=4, receive_messages=1)
_PULL = Limits(message_bytes=64_000_000, receive_messages=100)


@dataclass(frozen=True)
class Way:
    """What is there and what is left out."""

    name: str
    curve: bool = True
    receipts: bool = True
    log: bool = True


WAYS = (
    Way("all of it"),
    Way("without CURVE", curve=False),
    Way("without receipts", receipts=False),
    Way("without the log", log=False),
    Way("none of the three", curve=False, receipts=False, log=False),
)


def sessions() -> list[tuple[bytes, bytes]]:
    """Header and payload of bundles as a CartPole player makes them."""
    rng = np.random.default_rng(1)
    made = []
    for serial in range(256):
        arrays = {
            "obs": rng.normal(size=(TICKS + 1, SLOTS, 4)).astype(np.float32),
            "action": rng.integers(0, 2, (TICKS, SLOTS)).astype(np.uint8),
            "reward": np.ones((TICKS, SLOTS), np.float32),
            "flags": np.zeros((TICKS, SLOTS), np.uint8),
        }
        header, payload = encode_bundle(
            SCHEMA, arrays, slots=SLOTS, version=0, rank=0, serial=serial, steps=TICKS * SLOTS, episodes=[]
        )
        made.append((frames.encode(header), payload))
    return made


class Sink:
    """A shard: takes, checks, logs, stores, answers."""

    def __init__(self, way: Way, folder: str, keys: KeyPair | None) -> None:
        self.way, self.stored = way, 0
        self.loop = Loop()
        network = Network(self.loop)
        self.pull = network.server("pull", ["tcp://127.0.0.1:*"], keys, _PULL)
        self.control = network.server("router", ["tcp://127.0.0.1:*"], keys)
        self.peer = b""
        params = ReplayParams(capacity_bytes=64_000_000)
        self.store = ShardStore.open(Path(folder), SCHEMA, params, seed=1)
        if not way.log:
            self.store._log.append = lambda kind, body, mark=0: None  # type: ignore[method-assign]
        self.network = network
        self.loop.on_readable(self.control, self._hear)
        self.loop.on_readable(self.pull, self._take)

    def _hear(self) -> None:
        while (received := self.control.receive()) is not None:
            self.peer = received.peer

    def _take(self) -> None:
        verdicts = []
        for _ in range(100):
            received = self.pull.receive()
            if received is None:
                break
            delivery = frames.decode_to_shard(received.frames[0])
            accepted = self.store.accept(
                received.user or "n" * 40,
                delivery,
                received.frames[1],
                received.frames[2],
                0,
                RUN,
                self.loop.now(),
            )
            assert accepted.verdict.status == "stored", accepted
            self.stored += 1
            verdicts.append(accepted.verdict)
        if self.way.receipts and verdicts:
            message = m.Receipts(shard=0, boot_id="b", verdicts=verdicts)
            self.control.send([frames.encode(message)], self.peer)


def sink_main(way: Way, folder: str, keys: KeyPair | None, pipe: Connection) -> None:
    """The receiving process: tells its ports, then how much it stored, whenever it is asked."""
    sink = Sink(way, folder, keys)
    pipe.send((sink.pull.bound, sink.control.bound))

    def look() -> None:
        while pipe.poll():
            if pipe.recv() == "end":
                sink.loop.stop()
                return
            pipe.send(sink.stored)

    sink.loop.every(0.02, look)
    sink.loop.run()
    sink.store.close()
    sink.network.close()


class Source:
    """A member's sending half."""

    def __init__(self, way: Way, endpoints: tuple[str, str], keys: KeyPair | None, count: int) -> None:
        self.bundles, self.count, self.made = sessions(), count, 0
        self.network = Network()
        mine = new_key_pair() if keys else None
        server = keys.public if keys else None
        self.push: Socket = self.network.client("push", endpoints[0], mine, server, _PUSH)
        self.control: Socket = self.network.client("dealer", endpoints[1], mine, server)
        self.control.send([b"here I am"])
        self.way, self.loop = way, Loop()
        self.box = Outbox(16_000_000, 64)
        self.idle = threading.Event()

    def run(self) -> None:
        """Until everything was sent, and answered for where there are receipts."""
        if not self.way.receipts:
            for seq in range(self.count):
                while not self.push.send(self._parts(seq, seq)):
                    self.idle.wait(0.0002)
            return
        self.loop.on_readable(self.control, self._settle)
        self._apply(
            self.box.shards_listed(1, [m.ShardAddress(index=0, push_port=1, sample_port=1, boot_id="s")], 0.0)
        )
        self.loop.every(0.02, lambda: self._apply(self.box.ticked(self.loop.now())))
        self.loop.when_idle(self._fill)
        self.loop.run()

    def _fill(self) -> bool:
        made = 0
        while self.box.room and self.made < self.count and made < 16:
            header, payload = self.bundles[self.made % len(self.bundles)]
            self._apply(
                self.box.produced(self.made, len(header) + len(payload), TICKS * SLOTS, self.loop.now())
            )
            self.made += 1
            made += 1
        return bool(made)

    def _settle(self) -> None:
        while (received := self.control.receive()) is not None:
            message = frames.decode_from_broker(received.frames[0])
            assert isinstance(message, m.Receipts)
            self._apply(self.box.settled(0, message.verdicts, None, self.loop.now()))
        if self.made == self.count and self.box.pending == 0:
            self.loop.stop()

    def _apply(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and not self.push.send(self._parts(effect.seq, effect.token)):
                self.box.send_failed(effect.shard, effect.seq, self.loop.now())
                self.loop.on_writable(self.push, self._go_on)

    def _go_on(self) -> None:
        self._apply(self.box.writable(0, self.loop.now()))

    def _parts(self, seq: int, token: int) -> list[bytes]:
        header, payload = self.bundles[token % len(self.bundles)]
        return [frames.encode(m.Delivery(run_id=RUN, boot_id="b", seq=seq)), header, payload]


def once(way: Way, count: int) -> float:
    """Bundles stored a second."""
    keys = new_key_pair() if way.curve else None
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        ours, theirs = mp.get_context("spawn").Pipe()
        child = mp.get_context("spawn").Process(target=sink_main, args=(way, folder, keys, theirs))
        child.start()
        source = Source(way, ours.recv(), keys, count)
        began = time.perf_counter()
        source.run()
        while True:
            ours.send("how many?")
            if ours.recv() >= count:
                break
        took_s = time.perf_counter() - began
        ours.send("end")
        child.join()
        source.network.close()
    return count / took_s


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--bundles", type=int, default=8000, metavar="N", help="in each run; default: 8000")
    chosen = parser.parse_args()
    rates: dict[str, list[float]] = {way.name: [] for way in WAYS}
    for turn in range(TURNS):
        for way in WAYS:
            rates[way.name].append(once(way, chosen.bundles))
            say(f"turn {turn + 1}: {way.name}: {rates[way.name][-1]:.0f} bundles/s")
    full = statistics.median(rates[WAYS[0].name])
    size = statistics.mean(len(h) + len(p) for h, p in sessions())
    rows: list[dict[str, Any]] = [
        {
            "way": name,
            "bundles_per_s": statistics.median(values),
            "range": [min(values), max(values)],
            "ratio": statistics.median(values) / full,
        }
        for name, values in rates.items()
    ]
    text = table(
        ("way", "bundles/s", "from", "to", "ratio"),
        [
            (
                r["way"],
                f"{r['bundles_per_s']:.0f}",
                f"{r['range'][0]:.0f}",
                f"{r['range'][1]:.0f}",
                f"{r['ratio']:.2f}",
            )
            for r in rows
        ],
    )
    figures = {"machine": machine(), "bundle_bytes": size, "sessions_per_bundle": SLOTS, "rows": rows}
    finish(figures, f"{text}\n\n{size:.0f} bytes a bundle of {SLOTS} sessions", chosen.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
