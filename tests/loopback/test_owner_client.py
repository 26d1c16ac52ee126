"""Which key a command speaks with, and what it says when that key is not let in: against a host made by hand."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest

from p2prl.cli import main as cli
from p2prl.core import messages as m
from p2prl.errors import NoHostFound
from p2prl.net.addresses import KnownHost, KnownHosts
from p2prl.net.keys import KeyPair, fingerprint, load_or_create, new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network, Received, Socket
from p2prl.net.tokens import parse_token
from p2prl.nodes import client as client_module
from p2prl.nodes import owner as owner_module
from p2prl.nodes.own_host import own_hosts
from p2prl.nodes.report import Silence
from p2prl.wire import frames
from tests import kit
from tests.unit import cli_samples as samples

_ANN, _BOB = new_key_pair().public, new_key_pair().public


@dataclass
class HandMadeHost:
    """An enrol socket that gives a card, and a control socket that answers whoever `admits` lets in.

    Attributes:
        heard: what was asked, with the key that asked.
        answers: by the type of the question, instead of the usual answer.
    """

    keys: KeyPair
    admits: Callable[[str], bool]
    standing: m.Standing = "unknown"
    open: bool = False
    base: int = field(default_factory=kit.free_base)
    answers: dict[type[m.Message], m.Message] = field(default_factory=dict)
    heard: list[tuple[str, m.Message]] = field(default_factory=list)

    def __enter__(self) -> HandMadeHost:
        self._loop, self._up = Loop(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        assert self._up.wait(10.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.stop()
        self._thread.join(10.0)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.base}"

    def asked(self, kind: type[m.Message]) -> list[str]:
        """Who asked such a thing."""
        return [user for user, message in self.heard if isinstance(message, kind)]

    def _work(self) -> None:
        network = Network(self._loop, self.admits)
        enrol = network.server("router", [f"tcp://127.0.0.1:{self.base + 1}"], None)
        control = network.server("router", [f"tcp://127.0.0.1:{self.base}"], self.keys)
        self._loop.on_readable(enrol, lambda: self._each(enrol, lambda received: self._card()))
        self._loop.on_readable(control, lambda: self._each(control, self._answer))
        self._up.set()
        self._loop.run()
        network.close()

    def _each(self, socket: Socket, answer: Callable[[Received], m.Message]) -> None:
        while (received := socket.receive()) is not None:
            socket.send([frames.encode(answer(received))], received.peer)

    def _card(self) -> m.EnrolCard:
        return m.EnrolCard(
            protocol=m.PROTOCOL,
            version="0",
            server_key=self.keys.public,
            run_id="a1b2c3d4",
            host_name="attic",
            boot_id="b",
            term=1,
            base_port=self.base,
            env="chain",
            agent="cem",
            open=self.open,
            standing=self.standing,
        )

    def _answer(self, received: Received) -> m.Message:
        message = frames.decode_to_broker(received.frames[0])
        self.heard.append((received.user, message))
        usual = {
            m.StatusAsk: samples.status(),
            m.CodeAsk: m.CodeNews(code="3-tiger-wolf", uses=2, reason="asked"),
            m.InviteAsk: m.Invite(
                id="t1",
                secret="s" * 24,
                server_key=self.keys.public,
                addresses=["192.0.2.20", "2001:db8::20"],
                base_port=self.base,
                uses=1,
                ttl_s=86_400.0,
            ),
        }
        return self.answers.get(type(message)) or usual.get(type(message)) or self.nodes()

    def nodes(self, ann: m.Standing = "waiting", bob: m.Standing = "admitted") -> m.NodesReply:
        """Two joiners and the host's own member."""
        entries = [
            m.NodeEntry(key=_ANN, name="ann", standing=ann, how="code", since=1.0),
            m.NodeEntry(key=_BOB, name="bob", standing=bob, how="code", since=1.0),
            m.NodeEntry(key="x" * 40, name="attic", standing="admitted", how="own"),
        ]
        return m.NodesReply(host_name="attic", open=self.open, nodes=entries, code="17-maple-otter", uses=3)


@pytest.fixture
def own(home: Path) -> HandMadeHost:
    """A host of this state folder: it lets in nobody but the owner."""
    owner = load_or_create(home / "owner.key").public
    return HandMadeHost(load_or_create(home / "node.key"), lambda key: key == owner)


def theirs(standing: m.Standing, open_: bool = False, admits: bool = True) -> HandMadeHost:
    """Somebody else's host."""
    return HandMadeHost(new_key_pair(), lambda key: admits, standing, open_)


def node_key(home: Path) -> str:
    return load_or_create(home / "node.key").public


# --- which key


def test_a_host_of_this_state_folder_is_asked_with_the_owners_key(home: Path, own: HandMadeHost) -> None:
    with own:
        assert cli.main(["status", own.target, "--json"]) == 0
    assert own.asked(m.StatusAsk) == [load_or_create(home / "owner.key").public]


@pytest.mark.parametrize(("standing", "open_"), [("admitted", False), ("admitted", True), ("unknown", True)])
def test_another_host_is_asked_with_this_nodes_key(home: Path, standing: m.Standing, open_: bool) -> None:
    with theirs(standing, open_) as host:
        assert cli.main(["status", host.target, "--json"]) == 0
    assert host.asked(m.StatusAsk) == [node_key(home)]


@pytest.mark.parametrize(
    ("standing", "open_", "told"),
    [
        (
            "unknown",
            False,
            "attic does not know this node; join it first with its code: p2prl join 127.0.0.1:",
        ),
        ("waiting", False, "attic's owner has not let this node in yet (p2prl admit NODE)"),
        ("removed", True, "attic's owner removed this node: ask there to be let in again (p2prl admit NODE)"),
        ("quarantined", True, "(p2prl quarantine NODE --undo)"),
    ],
)
@pytest.mark.parametrize("command", ["status", "eval"])
def test_who_is_not_let_in_is_told_at_once_and_does_not_dial(
    standing: m.Standing, open_: bool, told: str, command: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with theirs(standing, open_) as host:
        assert cli.main([command, host.target]) == 4
    said = capsys.readouterr().err
    node = fingerprint(load_or_create(home / "node.key").public)
    assert told.replace("NODE", node) in said
    assert said.count("\n") == 1
    assert host.heard == []


def known_host(name: str, key: str, base: int, address: str = "127.0.0.1", run: str = "r") -> KnownHost:
    return KnownHost(name=name, run_id=run, server_key=key, addresses=(address,), base_port=base, seen_at=1.0)


def test_a_host_with_another_key_than_it_had_is_not_asked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with theirs("admitted") as host:
        for old in (known_host("attic", "x" * 40, 1), known_host("lab", "x" * 40, host.base)):
            KnownHosts(home).remember(old)
            assert cli.main(["status", host.target]) == 4
            said = capsys.readouterr().err
            assert "KEY CHANGED" in said
            assert fingerprint("x" * 40) in said
            assert fingerprint(host.keys.public) in said
            assert cli.main(["forget", old.name]) == 0
        assert host.heard == []
        KnownHosts(home).remember(known_host("attic", host.keys.public, 1))
        assert cli.main(["status", host.target]) == 0, "the same key at another place is the same host"


@pytest.mark.parametrize("reason", ["removed", "quarantined", "not_admitted", "not_permitted"])
def test_a_refusal_is_told_with_the_hosts_words(
    reason: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with theirs("admitted") as host:
        host.answers[m.StatusAsk] = m.Refusal(reason=reason, text="because\x1b[2J I say so")
        assert cli.main(["status", host.target]) == 4
    assert capsys.readouterr().err == "p2prl: because[2J I say so\n"


def test_another_refusal_is_an_error_of_the_host(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with theirs("admitted") as host:
        host.answers[m.StatusAsk] = m.Refusal(reason="rate_limited", text="slowly")
        assert cli.main(["status", host.target]) == 1
    assert capsys.readouterr().err == "p2prl: the host refused: slowly\n"


def test_a_host_that_does_not_answer_is_told(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2prl.nodes.client._ANSWER_S", 0.5)
    with theirs("admitted", admits=False) as host:
        assert cli.main(["status", host.target]) == 3
    assert f"the host at 127.0.0.1 port {host.base} did not answer" in capsys.readouterr().err


def test_who_is_put_out_after_its_card_is_told_why_nobody_answers(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CURVE refuses without a word; the next card says why."""
    monkeypatch.setattr("p2prl.nodes.client._ANSWER_S", 0.5)
    host = theirs("admitted")

    def put_out(key: str) -> bool:
        host.standing = "removed"
        return False

    host.admits = put_out
    with host:
        assert cli.main(["status", host.target]) == 4
    assert "attic's owner removed this node" in capsys.readouterr().err


# --- the owner's orders


@pytest.mark.parametrize(
    "command",
    [
        ["nodes", "TARGET"],
        ["code", "TARGET", "--new"],
        ["invite", "TARGET"],
        ["admit", "ann", "--host", "TARGET"],
        ["remove", "bob", "--host", "TARGET"],
        ["quarantine", "bob", "--host", "TARGET"],
    ],
)
@pytest.mark.parametrize("standing", ["admitted", "unknown"])
def test_only_the_owner_on_the_hosts_machine_gives_orders(
    command: list[str], standing: m.Standing, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with theirs(standing) as host:
        assert cli.main([host.target if word == "TARGET" else word for word in command]) == 4
    said = capsys.readouterr().err
    assert "only attic's owner can do that" in said
    assert str(home) in said
    assert "P2PRL_HOME" in said
    assert host.heard == []


def test_the_owner_sees_who_is_there(own: HandMadeHost, capsys: pytest.CaptureFixture[str]) -> None:
    with own:
        assert cli.main(["nodes", own.target]) == 0
        shown = capsys.readouterr().out
        assert cli.main(["nodes", own.target, "--json"]) == 0
    assert f"to let in   p2prl admit {fingerprint(_ANN)}" in shown
    assert f"key {fingerprint(own.keys.public)}" in shown
    value = json.loads(capsys.readouterr().out)
    assert value["fingerprint"] == fingerprint(own.keys.public)
    assert [node["name"] for node in value["nodes"]] == ["ann", "attic", "bob"]


# Ids: keys are new in each process, and pytests side by side must agree on the tests' names.
@pytest.mark.parametrize(
    "name",
    ["ann", "AN", fingerprint(_ANN), fingerprint(_ANN)[:6], _ANN],
    ids=["name", "upper case", "fingerprint", "its beginning", "key"],
)
def test_a_node_is_admitted_by_any_of_its_names(
    name: str, own: HandMadeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    own.answers[m.AdmitAsk] = own.nodes(ann="admitted")
    with own:
        assert cli.main(["admit", name, "--host", own.target]) == 0
    assert [message for _, message in own.heard][1:] == [m.AdmitAsk(key=_ANN)]
    assert capsys.readouterr().out == f"ann ({fingerprint(_ANN)}) is admitted\n"


def test_a_node_is_removed_quarantined_and_released(
    own: HandMadeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    own.answers[m.RemoveAsk] = own.nodes(bob="removed")
    own.answers[m.QuarantineAsk] = own.nodes(bob="quarantined")
    with own:
        assert cli.main(["remove", "bob", "--host", own.target]) == 0
        assert cli.main(["quarantine", "bob", "--reason", "odd rewards", "--host", own.target]) == 0
        told = capsys.readouterr().out.splitlines()
        assert cli.main(["quarantine", "bob", "--undo", "--host", own.target]) == 2
        assert "bob" in capsys.readouterr().err
        own.answers[m.NodesAsk] = own.nodes(bob="quarantined")
        own.answers[m.QuarantineAsk] = own.nodes(bob="admitted")
        assert cli.main(["quarantine", "bob", "--undo", "--host", own.target]) == 0
    orders = [message for _, message in own.heard if not isinstance(message, m.NodesAsk)]
    assert orders == [
        m.RemoveAsk(key=_BOB),
        m.QuarantineAsk(key=_BOB, reason="odd rewards"),
        m.QuarantineAsk(key=_BOB, undo=True),
    ]
    assert f"p2prl admit {fingerprint(_BOB)} lets it in again" in told[0]
    assert f"p2prl quarantine {fingerprint(_BOB)} --undo ends that" in told[1]


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        (["admit", "zoe"], 2, "this host knows no node 'zoe'; it knows ann"),
        (["remove", "a"], 2, "may be ann"),
        (
            ["remove", "attic"],
            2,
            "attic (g4ha-caeq) is the host's own; for a host without any: p2prl host --players 0",
        ),
        (["remove", "bob"], 1, f"bob ({fingerprint(_BOB)}) is not removed: it is admitted"),
        (["quarantine", "bob", "--undo", "--reason", "x"], 2, "--reason says why a node is kept out"),
    ],
    ids=["unknown", "ambiguous", "own", "not in", "reason without cause"],
)
def test_an_order_that_cannot_be_followed_is_told(
    command: list[str], code: int, told: str, own: HandMadeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    with own:
        assert cli.main([*command, "--host", own.target]) == code
    said = capsys.readouterr().err
    assert told.replace("g4ha-caeq", fingerprint("x" * 40)) in said
    assert said.count("\n") == 1


def test_the_owner_is_shown_the_code_and_gets_a_new_one(
    own: HandMadeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    with own:
        assert cli.main(["code", own.target]) == 0
        assert own.asked(m.CodeAsk) == []
        assert cli.main(["code", own.target, "--new", "--json"]) == 0
        assert len(own.asked(m.CodeAsk)) == 1
        own.open = True
        assert cli.main(["code", own.target, "--new"]) == 2
        assert len(own.asked(m.CodeAsk)) == 1
    captured = capsys.readouterr()
    shown, fresh = captured.out.splitlines()
    assert shown == "17-maple-otter", "alone, for scripts"
    assert captured.err.splitlines()[0] == "valid for 3 more nodes"
    assert json.loads(fresh) == {"code": "3-tiger-wolf", "uses": 2, "ttl_s": None}
    assert "attic is open" in captured.err


def test_a_code_that_is_none_is_no_text_for_scripts(
    own: HandMadeHost, capsys: pytest.CaptureFixture[str]
) -> None:
    own.answers[m.NodesAsk] = m.NodesReply(host_name="attic", open=False, nodes=[], code="")
    with own:
        assert cli.main(["code", own.target]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "there is no join code now; p2prl code --new makes one\n"


def test_a_token_holds_all_that_a_joiner_needs(
    own: HandMadeHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token.txt"
    with own:
        assert cli.main(["invite", own.target]) == 0
        printed = capsys.readouterr()
        assert cli.main(["invite", own.target, "--uses", "5", "--ttl", "2h", "--out", str(file)]) == 0
        written = capsys.readouterr()
        before = file.read_text()
        assert cli.main(["invite", own.target, "--out", str(file)]) == 2
        assert "is there already, and may hold a token that is still valid" in capsys.readouterr().err
        assert file.read_text() == before
        assert cli.main(["invite", own.target, "--out", str(tmp_path / "no" / "folder")]) == 2
        if sys.platform != "win32":
            os.mkfifo(tmp_path / "fifo")
            reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            assert cli.main(["invite", own.target, "--out", str(tmp_path / "fifo")]) == 0
            assert parse_token(os.read(reader, 10_000).decode()).base_port == own.base
            os.close(reader)
            assert (tmp_path / "fifo").is_fifo(), "what was there and is no file stays"
    token = parse_token(printed.out)
    assert printed.out.count("\n") == 1, "nothing but the token, for a script to take"
    assert (token.addresses, token.base_port) == (("192.0.2.20", "2001:db8::20"), own.base)
    assert (token.server_key, token.id, token.secret) == (own.keys.public, "t1", "s" * 24)
    assert "p2prl join --token" in printed.err
    assert parse_token(file.read_text(encoding="utf-8")) == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert written.out == ""
    assert f"p2prl join --token {file}" in written.err
    asked = [message for _, message in own.heard]
    assert asked[:2] == [m.InviteAsk(uses=1, ttl_s=86_400.0), m.InviteAsk(uses=5, ttl_s=7200.0)]


# --- the host that runs here


def test_the_own_host_is_known_by_its_key_among_others(home: Path, own: HandMadeHost) -> None:
    with own, theirs("admitted", open_=True) as other:
        found = own_hosts([other.base, own.base, kit.free_base()])
    assert [host.base_port for host in found] == [own.base]


def test_without_a_name_the_host_that_runs_here_is_meant(
    home: Path, own: HandMadeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("p2prl.nodes.own_host.DEFAULT_BASE_PORT", own.base)
    monkeypatch.setattr("p2prl.nodes.own_host.MAX_BLOCKS", 1)
    with own:
        for command in (["nodes"], ["code"], ["status"]):
            assert cli.main(command) == 0, command
    assert "17-maple-otter" in capsys.readouterr().out
    owner = load_or_create(home / "owner.key").public
    assert {user for user, _ in own.heard} == {owner}


def test_where_no_host_ran_ever_there_is_none_to_give_orders_to(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(owner_module, "browse", lambda timeout: [])
    assert cli.main(["nodes", "--wait", "30"]) == 3
    assert f"no host runs on this machine from the state folder {home}" in capsys.readouterr().err


def test_several_own_hosts_must_be_told_apart(
    home: Path, own: HandMadeHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = HandMadeHost(own.keys, own.admits, base=own.base + 100)
    monkeypatch.setattr("p2prl.nodes.own_host.DEFAULT_BASE_PORT", own.base)
    monkeypatch.setattr("p2prl.nodes.own_host.MAX_BLOCKS", 2)
    with own, second:
        assert cli.main(["nodes"]) == 2
    told = capsys.readouterr().err
    assert "several hosts run on this machine; name one" in told
    assert own.target in told
    assert second.target in told


# --- p2prl forget


def forgotten(name: str, key: str, where: str) -> str:
    return f"{name} (key {fingerprint(key)}, at {where}) is forgotten; to join it again takes its code"


def test_each_host_is_forgotten_in_one_line_with_all_its_places(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, other = new_key_pair().public, new_key_pair().public
    for run, of, base in (("one", key, 47900), ("two", other, 47800), ("three", key, 47800)):
        KnownHosts(home).remember(known_host("attic", of, base, "fe80::1", run))
    assert cli.main(["forget", "attic"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        forgotten("attic", key, "[fe80::1]:47800, [fe80::1]:47900"),
        forgotten("attic", other, "[fe80::1]:47800"),
    ]


def test_a_host_is_forgotten_by_any_of_its_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {name: new_key_pair().public for name in ("attic", "lab")}
    for name in ("attic", "attic.example", "attic.example:47800", keys["attic"], fingerprint(keys["attic"])):
        for host, key in keys.items():
            for run in ("first", "second"):
                KnownHosts(home).remember(known_host(host, key, 47800, f"{host}.example", host + run))
        assert cli.main(["forget", name]) == 0
        assert [host.name for host in KnownHosts(home).hosts()] == ["lab", "lab"], name
        assert capsys.readouterr().out.splitlines() == [
            forgotten("attic", keys["attic"], "attic.example:47800")
        ]
    assert stat.S_IMODE((home / "known_hosts.json").stat().st_mode) == 0o600
    assert cli.main(["forget", "attik"]) == 2
    assert "no host 'attik' is known here" in capsys.readouterr().err
    assert cli.main(["forget", "lap"]) == 2
    assert "did you mean lab?" in capsys.readouterr().err


def test_what_cannot_be_forgotten_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    KnownHosts(home).remember(known_host("attic", "x" * 40, 47800))
    lock = home / "known_hosts.json.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    assert cli.main(["forget", "attic"]) == 1
    assert "nothing is forgotten" in capsys.readouterr().err


def test_a_host_that_is_watched_may_go_and_come_back(
    own: HandMadeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_S", 1.0)
    monkeypatch.setattr(client_module, "_WATCH_S", 0.05)
    watched = client_module.watch_status(own.target, 10.0)
    with own:
        seen = next(watched)
        assert isinstance(seen, m.StatusReply)
    while not isinstance(seen, Silence):
        seen = next(watched)
    again = next(watched)
    assert again == seen, "it is since the same moment"
    assert again.host_name == samples.status().host_name
    with own:
        while isinstance(seen, Silence):
            seen = next(watched)
        assert next(watched) == seen == samples.status()
    watched.close()


def test_a_host_that_never_answered_is_not_waited_for(
    own: HandMadeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_S", 1.0)
    own.admits, own.standing = lambda key: False, "admitted"
    with own, pytest.raises(NoHostFound, match="did not answer within"):
        next(client_module.watch_status(own.target, 10.0))
