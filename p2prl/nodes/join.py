"""`p2prl join`: find a host, then be a member of it until it ends or a signal comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from p2prl.core import messages as m
from p2prl.net.addresses import KnownHosts
from p2prl.net.interfaces import chosen_interfaces
from p2prl.net.keys import load_or_create, member_lock, state_folder
from p2prl.net.loop import Loop
from p2prl.net.tokens import Token, read_token
from p2prl.nodes.enrol import Entry
from p2prl.nodes.locate import Located, Search
from p2prl.nodes.member import Member
from p2prl.nodes.options import JoinOptions, default_players
from p2prl.nodes.relocate import look
from p2prl.nodes.report import Left, MemberReporter
from p2prl.nodes.signals import end_on_signals
from p2prl.nodes.wiring import MemberConfig

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def run_join(options: JoinOptions, reporter: MemberReporter) -> int:
    """Join a host; returns the exit code.

    Raises:
        P2prlError: no host, not admitted, another protocol, a package that is missing here.
    """
    if options.agent:
        from p2prl.registry import resolve_agent  # with it comes Gymnasium, which only players need

        resolve_agent(options.agent)  # a mistyped one is told before a host is looked for
    home = state_folder()
    with member_lock(home):
        loop, stop = Loop(), threading.Event()

        def end() -> None:
            stop.set()
            loop.stop(0)

        with end_on_signals(end, lambda: "p2prl: ended at once"):
            return _join(options, reporter, loop, stop)


def _ask_interruptibly(ask: Callable[[Question], Answer], question: Question) -> Answer:
    """A person at a prompt expects Ctrl-C to end it at once (KeyboardInterrupt)."""
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return ask(question)
    finally:
        signal.signal(signal.SIGINT, ours)


def _find(token: Token, search: Search) -> Located | None:
    """The host that a token is for, wherever it is now."""
    places = [(address, token.base_port) for address in token.addresses]
    from p2prl.net.discovery import Browser  # with it come zeroconf and asyncio, for a search alone

    browser = Browser(search.interfaces)
    try:
        while not search.stop.is_set():
            located, trouble = look(search, token.server_key, places, browser)
            if located is not None:
                return located
            search.pause(f"the token's host does not answer: {trouble}")
            browser.follow()
    finally:
        browser.close()
    return None


def _enter(
    options: JoinOptions, search: Search, located: Located, stop: threading.Event, token: Token | None
) -> Located | None:
    ask = options.ask_code
    entry = Entry(
        search=search,
        node_key=search.node_key,
        name=options.name,
        known=KnownHosts(state_folder(), lambda text: search.say("warning", text)),
        code=options.code,
        token=token,
        ask_code=None if ask is None else partial(_ask_interruptibly, ask),
        say=search.say,
        stop=stop,
        wait_s=options.wait_s,
    )
    return entry.enter(located)


def _join(options: JoinOptions, reporter: MemberReporter, loop: Loop, stop: threading.Event) -> int:
    if options.interfaces:
        chosen_interfaces(
            options.interfaces
        )  # a mistyped one is told, also where an address makes it needless
    keys = load_or_create(state_folder() / "node.key")
    search = Search(
        target=options.target,
        wait_s=options.wait_s,
        interfaces=options.interfaces,
        say=lambda level, text: reporter.log(level, "join", text),
        choose=None if options.choose is None else partial(_ask_interruptibly, options.choose),
        stop=stop,
        node_key=keys.public,
    )
    token = read_token(options.token) if options.token is not None else None
    located = search.locate() if token is None or options.target else _find(token, search)
    if located is not None:
        located = _enter(options, search, located, stop, token)
    if located is None:
        reporter.left(Left("signal", "stopped before a host let this node in", m.Books()))
        return 0
    config = MemberConfig(
        host=located.address,
        base_port=located.base_port,
        server_key=located.card.server_key,
        keys=keys,
        name=options.name,
        players=default_players() if options.players is None else options.players,
        envs=options.envs or 0,
        agent=options.agent or "",
        wait_s=options.wait_s,
        interfaces=list(options.interfaces),
        spool_bytes=options.spool_bytes,
        spool_folder=str(state_folder() / "spool"),
    )
    member = Member(config, loop, reporter)
    try:
        return member.run()
    finally:
        reporter.left(member.left)
