"""Bundles' columns by wire/columns.py: how few bytes, how fast.

Pictures: bundles of 64 ticks in 8 slots, 65 rows of four stacked frames each. The limit is the first try
of the issue that asked for this, written down as straight as it is: each frame once, exclusive or against the one
before, one lz4 over all. The peer is plain lz4 over the stacks. Speeds count the bytes of the stacks, on one core. Of
floats plain lz4 is the limit.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import lz4.block
import numpy as np

from bench_parts import pictures
from bench_parts.kinds import Bar, Case, Unavailable
from p2prl.wire.blocks import pack
from p2prl.wire.columns import open_pictures, pack_column, unpack_column
from p2prl.wire.pictures import unpack_block

Array = np.ndarray[Any, np.dtype[Any]]
_TICKS, _STACK, _SIDE = 64, 4, 84
#: Bytes a frame that the issue names for random play: those of its first try.
_NAMED = {"Pong": 83, "Breakout": 55, "MsPacman": 228, "Seaquest": 171}
_PEER = "lz4 over the stacks"
_FLOAT_ENVS = ("CartPole-v1", "LunarLander-v3", "Acrobot-v1")
_FLOAT_SLOTS = 16
#: Of malloc.h. The most that glibc takes for the first of them is 32 MiB.
_MMAP_THRESHOLD, _TRIM_THRESHOLD, _MOST_KEPT = -3, -1, 32 * 1024 * 1024


def cases(quick: bool) -> Iterator[Case]:
    """Pictures game by game, then floats."""
    _keep_memory()
    for game in pictures.GAMES:
        for policy in pictures.POLICIES:
            yield from _pictures(game, policy, quick)
    for env_id in _FLOAT_ENVS:
        yield from _floats(env_id, quick)


def _keep_memory() -> None:
    """Have glibc keep freed memory for this process, else what is measured is the system giving fresh pages.

    By itself it keeps some and gives back some, as it happens: figures of one codec then differ by ten times. All ways
    have the same of it. Other systems have no such switch.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(option, _MOST_KEPT)  # type: ignore[union-attr]


# --- pictures


def _pictures(game: str, policy: str, quick: bool) -> Iterator[Case]:
    name = f"{game}, {policy}"
    try:
        file = pictures.frames(game, policy, *((_TICKS + 1, 2) if quick else (4 * _TICKS + 1, 8)))
    except Unavailable as error:
        yield {"case": name, "unit": "bytes/frame", "ours": None, "note": str(error)}
        return
    played = np.load(file, allow_pickle=False)
    bundles = [played[at : at + _TICKS + 1] for at in range(0, len(played) - 1, _TICKS)]
    yield _bytes(name, game if policy == pictures.RANDOM else "", bundles)
    yield from _speeds(name, bundles, 2 if quick else 5, 0.02 if quick else 0.08)


def _bytes(name: str, game: str, bundles: list[Array]) -> Case:
    """One value for each bundle."""
    ours, limit, plain = [], [], []
    for bundle in bundles:
        count = bundle.shape[0] * bundle.shape[1]
        codec, block = pack_column(bundle)
        assert np.array_equal(unpack_column(codec, block, "uint8", bundle.shape), bundle)
        ours.append(len(block) / count)
        blocks = straight(bundle)
        assert np.array_equal(unstraight(blocks, bundle.shape), bundle)
        limit.append(sum(map(len, blocks)) / count)
        plain.append(len(lz4.block.compress(np.ascontiguousarray(bundle), store_size=False)) / count)
    return {
        "case": f"{name}: size",
        "unit": "bytes/frame",
        "ours": ours,
        "limit": limit,
        "peers": {_PEER: plain},
        "bar": Bar(limit=1.0, value=_NAMED.get(game), lower=True),
    }


def _speeds(name: str, bundles: list[Array], turns: int, span_s: float) -> Iterator[Case]:
    packed = [pack_column(bundle) for bundle in bundles]
    straights = [straight(bundle) for bundle in bundles]
    plain = [lz4.block.compress(np.ascontiguousarray(bundle), store_size=False) for bundle in bundles]
    many, shape = range(len(bundles)), bundles[0].shape
    size = bundles[0].nbytes
    encode = _turns(
        turns,
        span_s,
        size,
        ours=lambda at: pack_column(bundles[at]),
        limit=lambda at: straight(bundles[at]),
        peer=lambda at: lz4.block.compress(np.ascontiguousarray(bundles[at]), store_size=False),
        many=many,
    )
    yield _speed(f"{name}: encode", encode)
    decode = _turns(
        turns,
        span_s,
        size,
        ours=lambda at: unpack_column(*packed[at], "uint8", shape),
        limit=lambda at: unstraight(straights[at], shape),
        peer=lambda at: np.frombuffer(lz4.block.decompress(plain[at], uncompressed_size=size), np.uint8),
        many=many,
    )
    yield _speed(f"{name}: decode", decode)
    if packed[0][0].startswith("pictures"):
        kept = _turns(
            turns,
            span_s,
            size,
            ours=lambda at: _each_once(*packed[at], shape),
            limit=lambda at: unstraight(straights[at], shape),
            peer=lambda at: np.frombuffer(lz4.block.decompress(plain[at], uncompressed_size=size), np.uint8),
            many=many,
        )
        yield _speed(f"{name}: decode, each picture once", kept)


def _each_once(codec: str, block: bytes, shape: tuple[int, ...]) -> list[Any]:
    """As a trainer reads them, before they are stacked anew."""
    slots = open_pictures(codec, block, "uint8", shape)
    return [unpack_block(slots.codec, one, shape[0], shape[2:]).kept for one in slots.blocks]


def _speed(name: str, found: dict[str, list[float]]) -> Case:
    return {
        "case": name,
        "unit": "GB/s",
        "ours": found["ours"],
        "limit": found["limit"],
        "peers": {_PEER: found["peer"]},
        "bar": Bar(limit=0.5),
    }


def _turns(
    turns: int, span_s: float, size: int, many: range, **ways: Callable[[int], object]
) -> dict[str, list[float]]:
    """GB/s of each way in each turn, over all bundles again and again."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for call in ways.values():
        call(0)  # what a first call makes it need not make again
    for _ in range(turns):
        for way, call in ways.items():
            done, began = 0, time.perf_counter()
            while (took_s := time.perf_counter() - began) < span_s or not done:
                for at in many:
                    call(at)
                done += len(many)
            rates[way].append(done * size / took_s / 1e9)
    return rates


def straight(bundle: Array) -> tuple[bytes, bytes]:
    """The issue's first try: `[rows, slots, 4, 84, 84]` of stacks -> bits, and one lz4 of what changed.

    A bit says of each row but the first that it does not continue the one before, as where an episode begins: then all
    its frames are kept, else the newest alone.
    """
    broken = _broken(bundle)
    changed = []
    for slot in range(bundle.shape[1]):
        single = bundle[:, slot][_kept(broken[:, slot])]
        changed.append(single[:1])
        changed.append(single[1:] ^ single[:-1])
    block: bytes = lz4.block.compress(np.concatenate(changed), store_size=False)
    return np.packbits(broken).tobytes(), block


def _broken(bundle: Array) -> Array:
    """bool `[rows - 1, slots]`: where a stack is not the one before, moved up by one frame."""
    rows, slots = bundle.shape[:2]
    if np.array_equal(bundle[1:, :, :-1], bundle[:-1, :, 1:]):
        return np.zeros((rows - 1, slots), bool)
    differs: Array = (bundle[1:, :, :-1] != bundle[:-1, :, 1:]).any(axis=(2, 3, 4))
    return differs


def _kept(broken: Array) -> Array:
    """bool `[rows, 4]`: the frames of one slot that are kept, in the order of time."""
    kept = np.zeros((len(broken) + 1, _STACK), bool)
    kept[:, -1] = True
    kept[0] = True
    kept[1:][broken] = True
    return kept


def unstraight(blocks: tuple[bytes, bytes], shape: tuple[int, ...]) -> Array:
    """The stacks again."""
    rows, slots = shape[:2]
    bits = np.frombuffer(blocks[0], np.uint8)
    broken = np.unpackbits(bits, count=(rows - 1) * slots).reshape(rows - 1, slots).astype(bool)
    newest = [np.cumsum(_kept(broken[:, slot]).sum(axis=1)) for slot in range(slots)]
    size = sum(int(at[-1]) for at in newest) * _SIDE * _SIDE
    plain = lz4.block.decompress(blocks[1], uncompressed_size=size, return_bytearray=True)
    frames = np.frombuffer(plain, np.uint8).reshape(-1, _SIDE, _SIDE)
    stacks = np.empty(shape, np.uint8)
    start = 0
    for slot, at in enumerate(newest):
        single = frames[start : start + at[-1]]
        for after in range(1, len(single)):
            np.bitwise_xor(single[after], single[after - 1], out=single[after])
        stacks[:, slot] = single[at[:, None] + np.arange(-_STACK, 0)]
        start += at[-1]
    return stacks


# --- floats


def _floats(env_id: str, quick: bool) -> Iterator[Case]:
    try:
        bundles = [_play(env_id, seed) for seed in range(1 if quick else 4)]
    except gym.error.DependencyNotInstalled as error:
        yield {"case": env_id, "unit": "bytes/tick", "ours": None, "note": f"{error}"}
        return
    for column in ("obs", "reward"):
        ours, limit = [], []
        for bundle in bundles:
            array = bundle[column]
            count = array.shape[0] * array.shape[1]
            ours.append(len(pack_column(array)[1]) / count)
            limit.append(len(pack(array)[1]) / count)
        yield {
            "case": f"{env_id}, {column}: size",
            "unit": "bytes/tick",
            "ours": ours,
            "limit": limit,
            "bar": Bar(limit=1.0, lower=True),
        }


def _play(env_id: str, seed: int) -> dict[str, Array]:
    """A bundle of random play, `[rows, slots, ...]` float32."""
    env = gym.make(env_id)
    shape = env.observation_space.shape or ()
    obs = np.empty((_TICKS + 1, _FLOAT_SLOTS, *shape), np.float32)
    reward = np.empty((_TICKS, _FLOAT_SLOTS), np.float32)
    env.action_space.seed(seed)
    for slot in range(_FLOAT_SLOTS):
        obs[0, slot], _ = env.reset(seed=100 * seed + slot)
        for tick in range(_TICKS):
            obs[tick + 1, slot], reward[tick, slot], terminated, truncated, _ = env.step(
                env.action_space.sample()
            )
            if terminated or truncated:
                obs[tick + 1, slot], _ = env.reset()
    env.close()
    return {"obs": obs, "reward": reward}
