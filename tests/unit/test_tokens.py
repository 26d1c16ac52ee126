"""Tokens as text and as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from p2prl.errors import UsageError
from p2prl.net.addresses import MAX_KNOWN_ADDRESSES
from p2prl.net.keys import new_key_pair
from p2prl.net.tokens import Token, format_token, parse_token, read_token

KEY = z85.encode(bytes(range(32))).decode("ascii")
HEX = bytes(range(32)).hex()
SECRET = "a_secret-of-32-characters-0123456"
TOKEN = Token(("192.0.2.7",), 47800, KEY, "ab12", SECRET)
TEXT = f"p2prl://192.0.2.7:47800/?key={HEX}&id=ab12&secret={SECRET}"


def test_the_text_is_the_documented_one() -> None:
    assert format_token(TOKEN) == TEXT
    assert parse_token(TEXT) == TOKEN
    assert parse_token(f"  {TEXT}\r\n") == TOKEN


@pytest.mark.parametrize(
    "addresses",
    [
        ("lab.local",),
        ("192.0.2.7", "lab.local", "fe80::1%eth0", "2001:db8::7"),
        ("fe80::1%eth0",),
        ("::1", "localhost"),
        ("2001:db8::7", "192.0.2.7"),
    ],
)
def test_names_and_addresses_of_both_kinds_survive(addresses: tuple[str, ...]) -> None:
    token = Token(addresses, 47900, new_key_pair().public, "x-_1", SECRET)
    text = format_token(token)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert parse_token(text) == token


def test_no_more_addresses_than_are_remembered() -> None:
    many = tuple(f"10.0.0.{number}" for number in range(100))
    token = Token(many, 47800, KEY, "ab12", SECRET)
    assert parse_token(format_token(token)).addresses == many[:MAX_KNOWN_ADDRESSES]
    text = TEXT + "".join(f"&also=10.0.1.{number}" for number in range(50))
    assert len(parse_token(text).addresses) == MAX_KNOWN_ADDRESSES
    assert parse_token(TEXT + "&also=192.0.2.7").addresses == ("192.0.2.7",)


@given(st.binary(min_size=32, max_size=32), st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
def test_any_key_and_id_survive(raw: bytes, token_id: str) -> None:
    token = Token(("192.0.2.7",), 1, z85.encode(raw).decode("ascii"), token_id, SECRET)
    assert parse_token(format_token(token)) == token


def test_fields_of_later_versions_are_skipped_and_the_scheme_may_be_shouted() -> None:
    assert parse_token(TEXT + "&colour=blue") == TOKEN
    assert parse_token(TEXT.replace("p2prl:", "P2PRL:")) == TOKEN


def test_the_secret_is_in_no_log() -> None:
    assert SECRET not in repr(TOKEN)
    assert SECRET not in str(TOKEN)


DAMAGED = [
    ("", "starts with p2prl://"),
    ("hello", "starts with p2prl://"),
    ("17-maple-otter", "starts with p2prl://"),
    ("ftp://192.0.2.7/", "starts with p2prl://"),
    ("http://192.0.2.7/token", "save it to a file"),
    ("https://192.0.2.7/token", "save it to a file"),
    ("HTTPS://192.0.2.7/token", "save it to a file"),
    ("p2prl://", "damaged (its address is none)"),
    (TEXT.replace("192.0.2.7", "192.0.2"), "damaged (its address is none)"),
    (TEXT.replace("192.0.2.7", "[fe80::1"), "damaged"),
    (TEXT.replace("192.0.2.7", "me@192.0.2.7"), "damaged (its address is none)"),
    (TEXT.replace(":47800", ""), "damaged (it has no port)"),
    (TEXT.replace(":47800", ":99999"), "damaged (its address is none)"),
    (TEXT + "&also=nobody%20there", "damaged (its address is none)"),
    (TEXT.replace(HEX, HEX[:-1]), "damaged (its key is missing or cut off)"),
    (TEXT.replace(HEX, HEX[:-1] + "g"), "damaged (its key is missing or cut off)"),
    (TEXT.replace("key=", "kez="), "damaged (its key is missing or cut off)"),
    (TEXT + f"&key={HEX}", "damaged (its key is missing or cut off)"),
    (TEXT.replace("id=ab12", "id="), "damaged (its id is missing or cut off)"),
    (TEXT.replace("id=ab12", "id=%00"), "damaged (its id is missing or cut off)"),
    (TEXT[:-20], "damaged (its secret is missing or cut off)"),
    (TEXT + "%20", "damaged (its secret is missing or cut off)"),
    (TEXT + "\nand more", "damaged"),
    (TEXT.replace("&id", "\n&id"), "damaged"),
    (TEXT + "\u00e9", "damaged"),
    (TEXT + "&x=" + "y" * 5000, "damaged"),
    (TEXT + "&a=1" * 100, "damaged"),
]


@pytest.mark.parametrize(("text", "said"), DAMAGED)
def test_what_is_no_token_is_said_in_one_line_without_the_secret(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_token(text)
    told = str(caught.value)
    assert said in told
    assert told.isprintable()
    assert SECRET[:10] not in told


@given(st.text(max_size=300))
def test_any_text_is_a_token_or_a_usage_error(text: str) -> None:
    for typed in (
        text,
        "p2prl://" + text,
        TEXT + text,
        f"p2prl://[{text}]:1/?key={HEX}&id=a&secret={SECRET}",
    ):
        try:
            said = repr(parse_token(typed))
        except UsageError as error:
            said = str(error)
        assert said.isprintable()


# --- files


def test_a_token_is_read_from_a_file_or_from_what_was_typed(tmp_path: Path) -> None:
    file = tmp_path / "a token.txt"
    file.write_text(TEXT + "\n", encoding="ascii")
    assert read_token(str(file)) == read_token(TEXT) == TOKEN
    file.write_bytes(b"\xef\xbb\xbf" + TEXT.encode() + b"\r\n")  # as Windows' Notepad writes it
    assert read_token(str(file)) == TOKEN


def test_a_url_of_the_web_is_not_fetched() -> None:
    with pytest.raises(UsageError, match="a token is a secret, and is not fetched from the web"):
        read_token("https://example.org/token")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "starts with p2prl://"),
        (b"\xff\xfe\x00\x01", "it is no text"),
        (b"x" * 4097, "it is larger than a token"),
        (TEXT.encode() + b" " * 10_000_000, "it is larger than a token"),
        (TEXT.encode()[:-20], "its secret is missing or cut off"),
    ],
)
def test_a_file_without_a_token_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_token(str(file))
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["missing", ".", "bad\0name"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_token(str(tmp_path / name))
    assert str(caught.value).isprintable()
