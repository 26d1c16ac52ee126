"""What a joiner proves to a host: a join code from a flag, a file, the environment or a person; or a token."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from p2prl.errors import UsageError

CODE_VARIABLE = "P2PRL_CODE"
#: A code has at most 20 letters; a file that is larger holds something else, and only its first line counts.
_MAX_FILE_BYTES = 4096


def given_code(
    code: str | None, file: Path | None, token: str | None, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The join code in its normal form, or None if there is none; a flag goes before the environment.

    Raises:
        UsageError: two flags contradict each other, the file cannot be read, or it is no code.
    """
    given = [
        flag
        for flag, value in (("--code", code), ("--code-file", file), ("--token", token))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are each a way in; give one of them")
    if token is not None:
        return None
    if code is not None:
        return parsed("--code", code)
    if file is not None:
        return parsed(f"--code-file {file}", _first_line(file))
    typed = environment.get(CODE_VARIABLE, "")
    return parsed(CODE_VARIABLE, typed) if typed.strip() else None


def parsed(source: str, text: str) -> str:
    """A join code in its normal form. Raises UsageError, naming where it came from."""
    from p2prl.core.codes import parse_code

    try:
        return parse_code(text)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def somebody_is_there(json: bool) -> bool:
    """True if a person can be asked."""
    return not json and sys.stdin.isatty() and sys.stdout.isatty()


def code_asker(json: bool) -> Callable[[str], str] | None:
    """Asks for a join code, where there is somebody to ask."""
    return ask_code if somebody_is_there(json) else None


def ask_code(host: str) -> str:
    """Ask the person for `host`'s join code, again until it is one that a host can have: a slip costs no guess.

    Returns:
        The code in its normal form.

    Raises:
        UsageError: there is nobody after all.
        KeyboardInterrupt: Ctrl-C.
    """
    from p2prl.cli.output import safe, write_line
    from p2prl.core.codes import parse_code

    while True:
        try:
            return parse_code(input(f"Join code of {safe(host, 60)} (it is on the host's screen): "))
        except EOFError:
            write_line("")
            raise UsageError("no join code was typed; p2prl join --code CODE takes one") from None
        except UsageError as error:
            write_line(safe(error))


def _first_line(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES)
        return raw.decode("utf-8-sig").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--code-file {file} cannot be read: {why}") from error
