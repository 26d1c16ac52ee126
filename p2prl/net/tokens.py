"""Tokens: everything that a machine where nobody types needs to join, in one text.

    p2prl://192.0.2.7:47800/?also=lab.local&key=<the host's key, 64 hex digits>&id=...&secret=...

Whoever has the text can join, as often as its uses allow. It is never fetched from anywhere: where it lies, somebody
could read it on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from zmq.utils import z85

from p2prl.errors import UsageError
from p2prl.net.addresses import MAX_KNOWN_ADDRESSES, Address, parse_address

_SCHEME = "p2prl"
_MAX_TOKEN_BYTES = 4096
_MAX_FIELDS = 64
_KEY = re.compile(r"[0-9a-fA-F]{64}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")
_HOW = "p2prl invite, on the host, makes one"


@dataclass(frozen=True)
class Token:
    """A token's parts. The secret is kept out of `repr`, and so out of logs.

    Attributes:
        addresses: where the host may be, IP addresses or names, the likeliest first; at least one.
        server_key: the host's CURVE public key, in Z85.
        id: which token it is, for the host.
    """

    addresses: tuple[str, ...]
    base_port: int
    server_key: str
    id: str
    secret: str = field(repr=False)


def format_token(token: Token) -> str:
    """The token as one text."""
    first, *others = token.addresses[:MAX_KNOWN_ADDRESSES]
    # A scope id's per cent sign is written %25 in a URL (RFC 6874).
    place = f"[{quote(first, safe=':')}]" if ":" in first else quote(first, safe="")
    fields = [
        *(("also", other) for other in others),
        ("key", z85.decode(token.server_key).hex()),
        ("id", token.id),
        ("secret", token.secret),
    ]
    return f"{_SCHEME}://{place}:{token.base_port}/?{urlencode(fields, safe=':')}"


def parse_token(text: str) -> Token:
    """Read a token.

    Raises:
        UsageError: it is none, or is damaged; the text never holds any of the secret.
    """
    text = text.strip()
    if text.lower().startswith(("http://", "https://")):
        raise UsageError(
            "a token is a secret, and is not fetched from the web: save it to a file that only you can read, "
            "and name that file"
        )
    if not text.lower().startswith(f"{_SCHEME}://"):
        raise UsageError(f"a token starts with {_SCHEME}://; {_HOW}")
    if len(text) > _MAX_TOKEN_BYTES or not text.isascii() or not text.isprintable() or " " in text:
        raise _damaged("it is longer than one, or more than one line or word")
    try:
        parts = urlsplit(text)
        fields = parse_qs(parts.query, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise _damaged("it is no URL") from error
    first = _address(parts.netloc)
    if not first.base:
        raise _damaged("it has no port")
    also = [_address(other).host for other in fields.get("also", [])]
    return Token(
        addresses=tuple(dict.fromkeys((first.host, *also)))[:MAX_KNOWN_ADDRESSES],
        base_port=first.base,
        server_key=z85.encode(bytes.fromhex(_one(fields, "key", _KEY))).decode("ascii"),
        id=_one(fields, "id", _ID),
        secret=_one(fields, "secret", _SECRET),
    )


def read_token(file_or_url: str) -> Token:
    """The token that this is, or that is in the file of this name.

    Raises:
        UsageError: no such file, or no token in it.
    """
    if "://" in file_or_url:
        return parse_token(file_or_url)
    try:
        with Path(file_or_url).open("rb") as file:
            raw = file.read(_MAX_TOKEN_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "that is no file's name"
        raise UsageError(f"the token file {file_or_url!r} cannot be read ({why})") from error
    try:
        if len(raw) > _MAX_TOKEN_BYTES:
            raise UsageError("it is larger than a token")
        return parse_token(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{file_or_url} holds no token: it is no text; {_HOW}") from error
    except UsageError as error:
        raise UsageError(f"{file_or_url} holds no token: {error}") from error


def _address(text: str) -> Address:
    try:
        return parse_address(unquote(text), 0)
    except UsageError as error:
        raise _damaged("its address is none") from error


def _one(fields: dict[str, list[str]], name: str, form: re.Pattern[str]) -> str:
    """The field, which is there once and has its form."""
    values = fields.get(name, [])
    if len(values) != 1 or not form.fullmatch(values[0]):
        raise _damaged(f"its {name} is missing or cut off")
    return values[0]


def _damaged(what: str) -> UsageError:
    return UsageError(f"this token is damaged ({what}): copy it again, whole; {_HOW}")
