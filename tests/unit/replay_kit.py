"""Honest sessions for tests of wire and replay: a schema, a player without an environment, its bundles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from p2prl.core.messages import BundleHeader, Delivery
from p2prl.core.schema import RESET, TERMINATED, Column, SessionSchema
from p2prl.replay.params import ReplayParams
from p2prl.replay.shard import Accepted, ShardStore
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import encode_bundle
from p2prl.wire.frames import encode

RUN = "run-1"
NODE = "n" * 40
BOOT = "boot-1"

CARTPOLE = SessionSchema(
    ticks=8,
    columns=(
        Column("obs", "float32", (4,), extra_row=True),
        Column("action", "uint8", (), low=(0.0,), high=(1.0,)),
        Column("reward", "float32", ()),
        Column("flags", "uint8", ()),
    ),
)


def play(
    slots: int, seed: int = 0, schema: SessionSchema = CARTPOLE
) -> tuple[dict[str, Array], int, list[tuple[float, int, float]]]:
    """A bundle's arrays, steps and episodes. Each observation is (row, slot, seed, 0)."""
    rng = np.random.default_rng(seed)
    ticks = schema.ticks
    obs = np.zeros((ticks + 1, slots, 4), np.float32)
    obs[..., 0] = np.arange(ticks + 1)[:, None]
    obs[..., 1] = np.arange(slots)
    obs[..., 2] = seed
    flags = np.zeros((ticks, slots), np.uint8)
    for slot in range(slots):
        tick = int(rng.integers(0, ticks + 3))
        while tick < ticks:
            flags[tick, slot] = TERMINATED
            if tick + 1 < ticks:
                flags[tick + 1, slot] = RESET
            tick += 2 + int(rng.integers(0, ticks))
    reset = flags & RESET != 0
    arrays = {
        "obs": obs,
        "action": rng.integers(0, 2, (ticks, slots)).astype(np.uint8),
        "reward": np.where(reset, 0, 1).astype(np.float32),
        "flags": flags,
    }
    episodes = [(1.0, 5, 0.0)] * int((flags & TERMINATED != 0).sum())
    return arrays, int((~reset).sum()), episodes


def make_bundle(slots: int = 4, seed: int = 0, version: int = 0) -> tuple[BundleHeader, bytes]:
    """An honest bundle of CARTPOLE."""
    arrays, steps, episodes = play(slots, seed)
    return encode_bundle(
        CARTPOLE, arrays, slots=slots, version=version, rank=0, serial=seed, steps=steps, episodes=episodes
    )


def push(
    shard: ShardStore,
    seq: int,
    *,
    slots: int = 4,
    seed: int | None = None,
    version: int = 0,
    current: int = 0,
    node: str = NODE,
    now: float = 0.0,
) -> Accepted:
    """Give `shard` an honest bundle; its seed is `seq` unless said."""
    header, payload = make_bundle(slots, seq if seed is None else seed, version)
    delivery = Delivery(run_id=RUN, boot_id=BOOT, seq=seq)
    return shard.accept(node, delivery, encode(header), payload, current, RUN, now)


def open_shard(folder: Path, kind: str = "uniform", sessions: int = 1000, **others: object) -> ShardStore:
    """A shard that holds `sessions` sessions of CARTPOLE."""
    capacity = sessions * CARTPOLE.session_bytes()
    spec = ReplayParams(kind=kind, capacity_bytes=capacity, **others)  # type: ignore[arg-type]
    return ShardStore.open(folder, CARTPOLE, spec, seed=3)
