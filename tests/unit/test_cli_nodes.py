"""`p2prl nodes`: who waits stands first, what can be typed is whole, and no name steers the terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from p2prl.cli.nodes import nodes_object, nodes_view
from p2prl.cli.output import json_line
from p2prl.core.messages import NodeEntry, NodesReply
from p2prl.net.keys import fingerprint
from tests.unit.cli_samples import HOSTILE
from tests.unit.test_cli_view import drawn

NOW = 1_800_000_000.0


def entry(index: int, **changes: Any) -> NodeEntry:
    """An admitted node that plays."""
    values: dict[str, Any] = {
        "key": f"{index:040d}",
        "name": f"laptop-{index:02d}",
        "standing": "admitted",
        "how": "code",
        "address": f"192.0.2.{20 + index}",
        "since": NOW - 7500.0,
        "state": "working",
    }
    return NodeEntry(**{**values, **changes})


def reply(*entries: NodeEntry, **changes: Any) -> NodesReply:
    """A host with a join code."""
    values: dict[str, Any] = {
        "host_name": "attic",
        "open": False,
        "code": "17-maple-otter",
        "uses": 3,
        "ttl_s": 60.0,
    }
    return NodesReply(nodes=list(entries), **{**values, **changes})


MIXED = (
    entry(1, standing="removed", reason="removed by the owner", state="", since=NOW - 3 * 86_400.0),
    entry(2),
    entry(
        3, standing="quarantined", reason="not_finite 10 times", refused={"oversize": 1, "not_finite": 2000}
    ),
    entry(4, standing="waiting", state="", since=NOW - 12.0),
    entry(5, how="own", name="attic", since=0.0),
)


def shown(*entries: NodeEntry, width: int = 140, **changes: Any) -> list[str]:
    return drawn(nodes_view(reply(*entries, **changes), "abcd-efgh", NOW, width), width)


def test_who_waits_stands_first_and_the_hint_lets_it_in() -> None:
    lines = shown(*MIXED)
    assert [line.split()[0] for line in lines[1:6]] == [
        "laptop-04",
        "attic",
        "laptop-02",
        "laptop-03",
        "laptop-01",
    ]
    assert f"to let in   p2prl admit {fingerprint(MIXED[3].key)}" in lines
    assert "join code   17-maple-otter   for 3 more nodes, for 1 m 00 s" in lines
    assert "host        attic, key abcd-efgh" in lines
    assert "to let in" not in "\n".join(shown(entry(2)))


def test_each_row_says_how_a_node_stands_and_why() -> None:
    rows = {line.split()[0]: line for line in shown(*MIXED) if line and line[0] != "!"}
    for node in MIXED:
        assert fingerprint(node.key) in rows[node.name]
        assert f" {node.standing} " in rows[node.name]
    assert " 12 s " in rows["laptop-04"]
    assert " 2 h " in rows["laptop-02"]
    assert " 3 d " in rows["laptop-01"]
    assert " 2,001" in rows["laptop-03"]
    assert "! laptop-01: removed by the owner" in shown(*MIXED)
    assert "! laptop-03: not_finite 10 times; refused: not_finite 2,000, oversize 1" in shown(*MIXED)
    assert " own " in rows["attic"]
    assert "192.0.2.22" in rows["laptop-02"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_what_must_be_typed_is_whole_on_a_narrow_terminal(width: int) -> None:
    lines = shown(*MIXED, width=width)
    assert max(map(len, lines)) <= width
    for node in MIXED:
        assert any(fingerprint(node.key) in line for line in lines), node.name


def test_what_there_is_instead_of_a_code() -> None:
    assert "join code   not needed: the host is open to any machine" in shown(open=True, code="")
    assert "join code   none now; p2prl code --new makes one" in shown(code="", uses=0)
    assert shown()[0] == "no node has come yet"


def test_hostile_names_stay_in_their_row() -> None:
    bad = entry(
        1, name=HOSTILE, how=HOSTILE, reason=HOSTILE, address=HOSTILE, state=HOSTILE, refused={HOSTILE: 1}
    )
    lines = shown(bad, host_name=HOSTILE, code=HOSTILE)
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("forged") for line in lines)
    assert any("[red]x[/red]" in line for line in lines)


def test_json_has_all_of_it_in_the_same_order() -> None:
    value = json.loads(json_line(nodes_object(reply(*MIXED), "abcd-efgh")))
    assert value.keys() == {"host", "fingerprint", "open", "code", "uses", "ttl_s", "nodes"}
    assert (value["host"], value["fingerprint"], value["code"], value["uses"]) == (
        "attic",
        "abcd-efgh",
        "17-maple-otter",
        3,
    )
    assert value["nodes"][0]["name"] == "laptop-04"
    row = value["nodes"][3]
    assert row["fingerprint"] == fingerprint(MIXED[2].key)
    assert row["refused"] == {"oversize": 1, "not_finite": 2000}
    assert row.keys() == {*NodeEntry.__struct_fields__, "fingerprint"}


def test_what_was_refused_of_a_node_while_it_was_out_goes_when_it_is_in_again() -> None:
    counts = {"removed": 1234, "oversize": 1}
    out = "\n".join(shown(entry(1, standing="removed", refused=counts)))
    assert "1,235" in out
    assert "refused: removed 1,234, oversize 1" in out
    back = "\n".join(shown(entry(1, refused=counts)))
    assert "refused: oversize 1" in back
    assert "removed" not in back


def test_who_is_let_in_but_not_here_is_told_so() -> None:
    lines = shown(entry(1, state=""), entry(2, standing="waiting", state=""))
    assert "not here" in next(line for line in lines if line.startswith("laptop-01"))
    assert "not here" not in next(line for line in lines if line.startswith("laptop-02"))
