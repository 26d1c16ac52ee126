"""What fuzz tests throw: valid messages of every kind, with hypothesis or from a seed, and damaged ones.

Values are built from the types of core/messages.py, so a message that is added there is thrown too, as it is.
"""

from __future__ import annotations

import copy
import math
import os
import random
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from p2prl.core import messages as m
from p2prl.wire import frames
from tests.hostile import PICKLE

Frames = list[bytes]
T = TypeVar("T")

#: How many examples a test looks at; P2PRL_FUZZ_TIMES=100 looks a hundred times longer.
_TIMES = int(os.environ.get("P2PRL_FUZZ_TIMES", "1"))
many = settings(deadline=None, max_examples=200 * _TIMES, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=60 * _TIMES)
few = settings(many, max_examples=25 * _TIMES)
#: Damage is made from a seed: one number to say when a test fails.
seeded = st.integers(0, 2**32).map(random.Random)


def attempt(error: type[Exception], work: Callable[..., T], *arguments: object) -> tuple[T | None, Any]:
    """What `work` returned, or the one kind of error that it may raise; any other goes through."""
    try:
        return work(*arguments), None
    except error as caught:
        return None, caught


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder for one example."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


#: What msgpack's integers reach.
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
#: Nesting where a recursive space is no longer followed.
_DEEPEST = 3
_TEXTS = ("", "b", "run", "worker \N{SNOWMAN}", "\x1b[2J\r\n\0", "x" * 60, "%s{}", "../../etc")


# --- valid values of a type ----------------------------------------------------------------------------------------


class Choices(Protocol):
    """Where values come from: hypothesis, which shrinks them, or a seeded generator, which is fast."""

    def integer(self) -> int:
        """What msgpack can carry."""

    def real(self) -> float:
        """NaN and infinity too."""

    def text(self) -> str:
        """Short."""

    def data(self) -> bytes:
        """Short."""

    def one_of(self, options: Sequence[T]) -> T:
        """One of them."""

    def length(self) -> int:
        """Of a list."""


class Drawn:
    """Choices that hypothesis makes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self) -> int:
        """Any that msgpack can carry."""
        return self._draw(st.integers(INT_MIN, INT_MAX))

    def real(self) -> float:
        """Any."""
        return self._draw(st.floats())

    def text(self) -> str:
        """Any letters."""
        return self._draw(st.text(max_size=12))

    def data(self) -> bytes:
        """Any bytes."""
        return self._draw(st.binary(max_size=12))

    def one_of(self, options: Sequence[T]) -> T:
        """The first is what examples shrink to."""
        return self._draw(st.sampled_from(options))

    def length(self) -> int:
        """A few."""
        return self._draw(st.integers(0, 3))


class Seeded:
    """Choices of a `random.Random`, with a taste for the ends of ranges."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def integer(self) -> int:
        """Mostly small."""
        edges = (0, 1, -1, 255, 2**31, 2**62, 2**63 - 1, 2**63, INT_MAX, INT_MIN)
        return self._rng.choice(edges) if self._rng.random() < 0.2 else self._rng.randrange(100)

    def real(self) -> float:
        """Mostly finite."""
        edges = (0.0, -0.0, 1e308, -1e308, math.inf, -math.inf, math.nan)
        return self._rng.choice(edges) if self._rng.random() < 0.2 else self._rng.uniform(-10, 10)

    def text(self) -> str:
        """From a short list."""
        return self._rng.choice(_TEXTS)

    def data(self) -> bytes:
        """Noise."""
        return self._rng.randbytes(self._rng.randrange(40))

    def one_of(self, options: Sequence[T]) -> T:
        """Any."""
        return self._rng.choice(options)

    def length(self) -> int:
        """A few."""
        return self._rng.choice((0, 1, 1, 2, 5))


class Least:
    """Choices that make the smallest value: what a list can hold most of."""

    def integer(self) -> int:
        """Zero."""
        return 0

    def real(self) -> float:
        """Zero."""
        return 0.0

    def text(self) -> str:
        """Nothing."""
        return ""

    def data(self) -> bytes:
        """Nothing."""
        return b""

    def one_of(self, options: Sequence[T]) -> T:
        """The first."""
        return options[0]

    def length(self) -> int:
        """None."""
        return 0


def make(kind: Any, choose: Choices, depth: int = 0) -> Any:
    """A valid value of `kind`, which may be any type that a message's field has.

    Raises:
        TypeError: a type that this does not know yet.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in _LEAVES:
        return _LEAVES[kind](choose)
    if origin is Literal:
        return choose.one_of(args)
    if origin in (Union, types.UnionType):
        shallow = args[:1] if depth > _DEEPEST else args
        return make(choose.one_of(shallow), choose, depth + 1)
    if origin is list or (origin is tuple and args[1:] == (...,)):
        made = [make(args[0], choose, depth + 1) for _ in range(choose.length())]
        return made if origin is list else tuple(made)
    if origin is tuple:
        return tuple(make(arg, choose, depth + 1) for arg in args)
    if origin is dict:
        return {make(args[0], choose): make(args[1], choose, depth + 1) for _ in range(choose.length())}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, choose, depth)
    raise TypeError(f"tests/fuzz_kit.py cannot make a {kind}")


def _struct(kind: type[msgspec.Struct], choose: Choices, depth: int) -> msgspec.Struct:
    """Each field that has a default has it half of the time."""
    given = {
        field.name: make(field.type, choose, depth + 1)
        for field in msgspec.structs.fields(kind)
        if field.required or choose.one_of((False, True))
    }
    return kind(**given)


def _plain(choose: Choices) -> Any:
    """A value of the type Any: what TOML can say."""
    kind = choose.one_of((type(None), bool, int, float, str, list[int], dict[str, str]))
    return make(kind, choose)


_LEAVES: dict[Any, Callable[[Choices], Any]] = {
    bool: lambda choose: choose.one_of((False, True)),
    int: lambda choose: choose.integer(),
    float: lambda choose: choose.real(),
    str: lambda choose: choose.text(),
    bytes: lambda choose: choose.data(),
    type(None): lambda choose: None,
    Any: _plain,
}


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Every valid message of a kind."""

    @st.composite
    def built(draw: st.DrawFn) -> Any:
        return make(kind, Drawn(draw))

    return built()


def kinds(union: Any) -> tuple[type[m.Message], ...]:
    """The message types of a union, or of one type."""
    return get_args(union) or (union,)


def taken_by(decode: Callable[..., Any]) -> tuple[type[m.Message], ...]:
    """The message types that a decoder gives."""
    return kinds(get_type_hints(decode)["return"])


# --- damage --------------------------------------------------------------------------------------------------------

DEEP_LIST, DEEP_MAP = b"\x91" * 50_000 + b"\x90", b"\x81\xa1a" * 20_000 + b"\x80"
#: What no field expects, as msgpack.
_RAW = (
    b"\xdd\xff\xff\xff\xff",  # a list, a map, bytes and a text of 4 GiB
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xa2\xff\xfe",  # not UTF-8
    b"\xa3\xed\xa0\x80",  # a surrogate
    b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
    b"\xc7\x03\x05abc",  # another extension
    b"\xc1",  # what msgpack never uses
    DEEP_LIST,
    DEEP_MAP,
    b"\x91" * 200 + b"\x90",
)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, INT_MAX, INT_MIN, 0.5, 1e308, math.nan,
    math.inf, -math.inf, "", "0", "x" * 300, "x" * 70_000, "\x1b[2J", b"", b"\xff" * 50, PICKLE, [], [[]], {}, {"t": 1},
)  # fmt: skip


def hostile(rng: random.Random, raw: Sequence[bytes] = _RAW) -> Any:
    """A value that no field expects; `raw` is spliced in as it is by the encoder."""
    if raw and rng.random() < 0.3:
        return msgspec.Raw(rng.choice(raw))
    return copy.deepcopy(rng.choice(_VALUES))  # it may be damaged further


def mutate_tree(tree: Any, rng: random.Random, value: Callable[[random.Random], Any] = hostile) -> Any:
    """Plain values with one of them replaced, taken away, doubled or added."""
    places = list(_places(tree))
    if not places:
        return value(rng)
    holder, key = rng.choice(places)
    change = rng.randrange(6)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, list):
        holder += holder[: rng.randint(1, 40)]
    elif change == 1:
        holder["from_the_future"] = value(rng)
    elif change == 2:
        other, at = rng.choice(places)
        if at in other if isinstance(other, dict) else at < len(other):
            holder[key] = msgspec.msgpack.decode(msgspec.msgpack.encode(other[at]))
    else:
        holder[key] = value(rng)
    return tree


def _places(tree: Any) -> Any:
    """Each (container, key) in a tree of lists and dicts."""
    if isinstance(tree, (dict, list)):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def mutate_bytes(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A few bytes flipped, cut, doubled, inserted, or taken from another message."""
    frame = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place, change = rng.randrange(len(frame) + 1), rng.randrange(7)
        if change == 0 and place < len(frame):
            frame[place] ^= 1 << rng.randrange(8)
        elif change == 1 and place < len(frame):
            frame[place] = rng.choice((0, 1, 0x7F, 0x80, 0xC1, 0xD9, 0xDD, 0xDF, 0xFF, rng.randrange(256)))
        elif change == 2:
            del frame[place : place + rng.randint(1, 8)]
        elif change == 3:
            del frame[place:]
        elif change == 4:
            start = rng.randrange(len(frame) + 1)
            frame[place:place] = frame[start : start + rng.randint(1, 16)]
        elif change == 5:
            frame[place:place] = rng.randbytes(rng.randint(1, 8))
        elif others:
            other = rng.choice(others)
            frame[place:] = other[rng.randrange(len(other) + 1) :]
    return bytes(frame)


def mutate_frame(frame: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """One frame: damaged bytes, or sound msgpack with something else in it."""
    if rng.random() < 0.5:
        return mutate_bytes(frame, rng, others)
    if rng.random() < 0.05:
        return rng.choice((b"", PICKLE, rng.randbytes(rng.randrange(200)), *_RAW))
    try:
        tree = msgspec.msgpack.decode(frame)
        for _ in range(rng.randint(1, 2)):
            tree = mutate_tree(tree, rng)
        return msgspec.msgpack.encode(tree)
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        return mutate_bytes(frame, rng, others)  # a payload, or what was put in already


def mutate(parts: Sequence[bytes], rng: random.Random, others: Sequence[Sequence[bytes]] = ()) -> Frames:
    """A whole multipart message with something wrong, in a frame or in how many there are; never without frames.

    Args:
        others: messages that frames and parts of frames may come from.
    """
    message = list(parts)
    strangers = [frame for other in others for frame in other]
    change, place = rng.randrange(12), rng.randrange(len(message))
    if change == 0 and len(message) > 1:
        del message[place]
    elif change == 1:
        message.insert(place, message[rng.randrange(len(message))])
    elif change == 2:
        message += [rng.choice((b"", b"\0", PICKLE, rng.randbytes(20)))] * rng.choice((1, 2, 50))
    elif change == 3:
        rng.shuffle(message)
    elif change == 4 and strangers:
        message[place] = rng.choice(strangers)
    elif change == 5 and others:
        message = [*message[:place], *rng.choice(others)[place:]] or [b""]
    else:
        for index in range(len(message)):
            if index == place or rng.random() < 0.2:
                message[index] = mutate_frame(message[index], rng, strangers)
    return message


def seeds(union: Any, rng: random.Random, each: int = 4) -> list[Frames]:
    """Valid one-frame messages of every type in a union."""
    return [[frames.encode(make(kind, Seeded(rng)))] for kind in kinds(union) for _ in range(each)]
