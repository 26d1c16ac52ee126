"""The join code as people see it: what it is now, how long it is valid, and why it changed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from ipaddress import ip_address

from rich.text import Text

from p2prl.cli.output import duration, safe
from p2prl.core.messages import CodeNews
from p2prl.nodes.options import DEFAULT_BASE_PORT
from p2prl.nodes.report import HostStarted
from p2prl.words import many

_WHY = {
    "guesses": "too many wrong guesses",
    "used": "the join code has let in as many nodes as it may",
    "expired": "the join code's time is over",
    "asked": "another join code was asked for",
}
_NONE = "none any more: p2prl code --new makes one"


class JoinCode:
    """The newest one.

    Args:
        now: a clock in seconds; only differences matter.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._news: CodeNews | None = None
        self._heard_s = 0.0

    def take(self, news: CodeNews) -> str:
        """Remember it; returns a line that says why it changed, empty if it did not, or if it is the first one."""
        before, self._news, self._heard_s = self._news, news, self._now()
        if before is None or before.code == news.code:
            return ""
        why = _WHY.get(news.reason, "the host made another join code")
        return f"{why}: it is now {safe(news.code)}" if news.code else f"{why}; p2prl code --new makes one"

    def text(self) -> Text | None:
        """The code and its limits; None while nothing is known, and for an open host, which has none."""
        if self._news is None:
            return None
        if not self._news.code:
            return None if self._news.reason == "new" else Text(_NONE, "yellow")
        ttl_s = self._news.ttl_s
        if ttl_s is not None:
            ttl_s = max(0.0, ttl_s - (self._now() - self._heard_s))
        return code_text(self._news.code, self._news.uses, ttl_s)


def code_text(code: str, uses: int | None, ttl_s: float | None) -> Text:
    """A join code, for how many more nodes and for how long; nothing where there is no limit."""
    text, told = Text(safe(code), "bold"), limits(uses, ttl_s)
    return text.append(f"   {told}", "not bold") if told else text


def limits(uses: int | None, ttl_s: float | None) -> str:
    """For how many more nodes, and for how long; empty where there is no limit."""
    told = [] if uses is None else [f"for {many(uses, 'more node')}"]
    told += [] if ttl_s is None else [f"for {duration(ttl_s)}"]
    return ", ".join(told)


def warns(news: CodeNews) -> bool:
    """True if somebody should look at it: a code that was guessed at."""
    return news.reason == "guesses"


def dial_command(info: HostStarted) -> str:
    """How others join this host by its address."""
    port = "" if info.base_port == DEFAULT_BASE_PORT else f":{info.base_port}"
    address = f"[{info.address}]" if port and ":" in info.address else info.address
    return f"p2prl join {address}{port}"


def join_hint(info: HostStarted) -> str:
    """How others join this host: by its name, or by its address where multicast is blocked.

    Nobody else can join one that is on loopback alone; and its name is not found, for searches leave loopback out.
    """
    if all(ip_address(address).is_loopback for address in info.addresses):
        return f"{dial_command(info)}   # on this machine: no other one reaches it"
    return f"p2prl join {shlex.quote(safe(info.name))}   or   {dial_command(info)}"
