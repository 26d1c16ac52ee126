"""Join codes: a number and two words, to be read from a screen, said across a room and typed by a child.

A code is no password that has to last: it is proved with SPAKE2 (core/enrolment.py), so that each guess costs a try at
the host, which counts them and replaces the code after a few. That is why 22 bits are enough.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable

from p2prl.core.bounds import line
from p2prl.errors import UsageError

#: Plain nouns of 3 to 7 letters, no two of which sound alike or differ by one letter.
WORDS: tuple[str, ...] = tuple(
    """
    acorn airport almond alpaca amber anchor apple apricot artist atlas autumn bakery balcony bamboo banjo
    barrel basket bicycle biscuit bison blanket blossom bottle bronze bubble bucket buffalo burger button
    cabbage cabin cactus camera candle castle chalk cheetah chimney chorus circus cloud clover cobra comet
    compass copper cottage crayon cricket crystal curtain cushion daisy dancer diamond doctor dolphin domino
    dragon eagle easel elbow emerald engine factory falcon farmer feather fern finch flute forest fossil
    galaxy garden garlic gecko giraffe glacier glove granite grape guitar hammer hammock helmet holiday
    honey horizon igloo iguana island ivy jacket jaguar jasmine jelly jigsaw journey juice jungle kayak
    ketchup kettle kitchen koala ladder lagoon lake lantern lemon leopard lettuce library lily lobster lotus
    magnet magpie mammoth mango maple market meadow melody meteor mint mirror moon mouse museum mustard
    napkin nectar nest noodle nutmeg ocean octopus office olive onion orange orbit orchid ostrich otter oven
    palace pancake panda panther parrot parsley pasta peach pebble pelican pencil penguin pepper piano
    pigeon pilot pirate pizza planet popcorn potato pretzel pudding puma pumpkin puppy puzzle pyramid quilt
    rabbit radio rainbow ravioli ribbon riddle river robot rocket ruby saddle saffron salad salmon sandal
    satchel saucer scarf school scooter seagull shadow shovel signal silver singer slipper snail sofa
    sparrow spider spinach sponge spoon spring squid stadium storm sugar summer sunrise sweater table
    tadpole teacher teapot tennis thunder ticket tiger toast toffee tomato tractor trumpet tulip tundra
    tunnel turnip turtle valley vanilla velvet village violin volcano voyage waffle wagon walrus whistle
    willow window winter wizard wolf wombat zebra zipper
    """.split()  # noqa: SIM905 (256 quoted words cannot be read)
)
#: A guesser has to guess a number from 1 to 99 and two different words in order: one of 99 * 256 * 255, 22.6 bits.
_NUMBERS = 99

_FORM = "a join code is a number and two words, for example 17-maple-otter; the host shows its own"
#: Whatever people put between the parts: blanks, dots, commas, underscores, and all sorts of dashes.
_BETWEEN = re.compile(r"[\s.,_/+\-\u2010-\u2015\u2212]+")
_MAX_TYPED_CHARS = 100
_KNOWN = frozenset(WORDS)


def new_code(below: Callable[[int], int]) -> str:
    """A fresh code.

    Args:
        below: gives a random integer in [0, n), each as likely as any other, that nobody can foretell
            (`secrets.randbelow`).

    >>> new_code(lambda n: n - 1)
    '99-zipper-zebra'
    """
    number = 1 + below(_NUMBERS)
    first = below(len(WORDS))
    second = below(len(WORDS) - 1)
    second += second >= first
    return f"{number}-{WORDS[first]}-{WORDS[second]}"


def parse_code(text: str) -> str:
    """A code as it is proved, from what a person typed: any case, blanks or dots for dashes, leading zeros.

    >>> parse_code(" 017 Maple_otter.")
    '17-maple-otter'

    Raises:
        UsageError: no host can have such a code; the text names the nearest words.
    """
    if len(text) > _MAX_TYPED_CHARS:
        raise UsageError(f"that is too long for a join code; {_FORM}")
    typed = unicodedata.normalize("NFKC", text).casefold()
    parts = [part for part in _BETWEEN.split(typed) if part]
    if not parts:
        raise UsageError(f"the join code is empty; {_FORM}")
    if len(parts) != 3 or not _is_number(parts[0]):
        raise UsageError(f"{line(text.strip())!r} is not a join code; {_FORM}")
    number, first, second = int(parts[0]), parts[1], parts[2]
    if not 1 <= number <= _NUMBERS:
        raise UsageError(f"a join code starts with a number from 1 to {_NUMBERS}, not with {number}")
    for word in (first, second):
        if word not in _KNOWN:
            raise UsageError(f"no code has the word {line(word, 20)!r}{_did_you_mean(word)}")
    if first == second:
        raise UsageError(f"no code has the word {first!r} twice; {_FORM}")
    return f"{number}-{first}-{second}"


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) <= 9


def _did_you_mean(word: str) -> str:
    close = difflib.get_close_matches(word, WORDS, 3, 0.75) or difflib.get_close_matches(word, WORDS, 3)
    return f"; did you mean {' or '.join(close)}?" if close else "; the host shows the right ones"
