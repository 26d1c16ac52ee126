"""scripts/bench: rows that say what was measured and nothing else, bars that can be missed, parts that run."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_parts import (
    arguments,
    bare_torch,
    codec,
    judge,
    learning,
    page,
    peers,
    pictures,
    profile,
    results,
    scaling,
    updates,
    whole_run,
)
from bench_parts.kinds import Bar, Case
from bench_parts.rows import PARTS, Part, chosen
from p2prl_agents.maths import vtrace

from p2prl.core.schema import TERMINATED
from p2prl.learn.vector_rollout import VectorRollout
from tests.docs_kit import ROOT

ASKED = [
    "part",
    "case",
    "unit",
    "ours",
    "limit",
    "peer",
    "peer_name",
    "ratio_limit",
    "ratio_peer",
    "bar",
    "ok",
]


def row(**case: Any) -> dict[str, Any]:
    named: Case = {"case": "c", "unit": "u", **case}  # type: ignore[typeddict-item]
    return judge.row("p", named)


# --- rows


def test_a_row_has_what_the_issue_asks_for_in_its_order() -> None:
    assert list(row(ours=[1.0])) == ASKED
    assert list(row(ours=None, peers={"a": None})) == ASKED


def test_figures_are_medians_with_their_range() -> None:
    assert row(ours=[3, 1, 2])["ours"] == {"median": 2, "low": 1, "high": 3}
    assert row(ours=7)["ours"] == {"median": 7, "low": 7, "high": 7}
    assert row(ours=[0.0123456])["ours"]["median"] == 0.01235
    assert row(ours=[123456.7])["ours"]["median"] == 123457
    assert row(ours=None)["ours"] is None
    assert row(ours=[])["ours"] is None


def test_ratios_are_of_medians_with_the_range_of_the_turns() -> None:
    """A slow moment that fell on both is no slow ratio."""
    found = row(ours=[10, 20, 5], limit=[20, 40, 10])
    assert found["ratio_limit"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert row(ours=[10, 20], limit=[10])["ratio_limit"] == {"median": 1.5, "low": 1, "high": 2}
    assert row(ours=[1.0])["ratio_limit"] is None
    assert row(limit=[1.0])["ratio_limit"] is None


def test_the_best_peer_is_in_the_row_and_the_others_are_named() -> None:
    found = row(ours=[10.0], peers={"slow": [1.0], "fast": [2.0], "away": None, "empty": []})
    assert found["peer"]["median"] == 2
    assert found["peer_name"] == "fast; slow: 1; away: absent; empty: absent"
    assert found["ratio_peer"]["median"] == 5
    less = row(ours=[10.0], peers={"slow": [2.0], "fast": [1.0]}, bar=Bar(peer=1, lower=True))
    assert less["peer_name"] == "fast; slow: 2"


def test_what_was_not_measured_is_no_figure() -> None:
    found = row(ours=[1.0], peers={"a": None, "b": None}, bar=Bar(peer=10))
    assert (found["peer"], found["ratio_peer"], found["ok"]) == (None, None, None)
    assert found["peer_name"] == "a: absent; b: absent"


@pytest.mark.parametrize(
    ("bar", "ours", "limit", "peer", "ok"),
    [
        (None, [1], [1], [1], None),
        (Bar(), [1], [1], [1], None),
        (Bar(limit=0.5), [5], [10], None, True),
        (Bar(limit=0.5), [4.99], [10], None, False),
        (Bar(limit=0.5), [5], None, None, None),
        (Bar(limit=0.5), None, [10], None, None),
        (Bar(limit=0.5), [4, 5, 50], [10, 10, 10], None, True),
        (Bar(peer=10), [100], None, [10], True),
        (Bar(peer=10), [99], None, [10], False),
        (Bar(peer=10), [99], [1], None, None),
        # What is missed is missed, whatever else was not measured.
        (Bar(limit=0.5, peer=10), [4], [10], None, False),
        (Bar(limit=0.5, peer=10), [5], [10], None, None),
        (Bar(value=0.2, lower=True), [0.2], None, None, True),
        (Bar(value=0.2, lower=True), [0.21], None, None, False),
        (Bar(limit=1, value=83, lower=True), [82], [83], None, True),
        (Bar(limit=1, value=83, lower=True), [82], [81], None, False),
        (Bar(limit=1, value=83, lower=True), [84], [85], None, False),
        ({"limit": 1.5, "lower": True}, [1.4], [1], None, True),
    ],
)
def test_bars(bar: Any, ours: Any, limit: Any, peer: Any, ok: bool | None) -> None:
    assert row(bar=bar, ours=ours, limit=limit, peers={"a": peer})["ok"] is ok


@pytest.mark.parametrize(
    ("asked", "reverb", "tinyverse", "ok"),
    [
        (("Reverb", "tinyverse"), [10], [9], True),
        (("Reverb", "tinyverse"), [9], [11], False),
        (("Reverb", "tinyverse"), [11], [9], False),
        # Whoever is absent leaves it open, but not where the other one is too fast already.
        (("Reverb", "tinyverse"), [10], None, None),
        (("Reverb", "tinyverse"), None, [10], None),
        (("Reverb", "tinyverse"), [11], None, False),
        (("Reverb", "tinyverse"), None, [11], False),
        (("Reverb",), [10], [11], True),
        (("Reverb",), [10], None, True),
        (("Reverb",), [11], [1], False),
        (("Reverb",), None, [1], None),
        ((), [10], None, True),
        ((), [10], [11], False),
    ],
)
def test_a_bar_names_whom_it_asks_for(
    asked: tuple[str, ...], reverb: Any, tinyverse: Any, ok: bool | None
) -> None:
    peers = {"Reverb 0.14.0": reverb, "tinyverse's way": tinyverse}
    assert row(ours=[100], peers=peers, bar=Bar(peer=10, peers=asked))["ok"] is ok


def test_bars_in_words() -> None:
    named = Bar(peer=10, peers=("Reverb", "tinyverse"))
    assert row(bar=named)["bar"] == ">= 10 x Reverb and tinyverse"
    assert row(bar=Bar(limit=0.5, peer=10))["bar"] == ">= 0.5 x limit, >= 10 x peer"
    assert row(bar=Bar(value=90, lower=True))["bar"] == "<= 90 u"
    assert row()["bar"] == ""


# --- the table and the file


def test_the_table_shows_each_row_and_each_note_once() -> None:
    one = row(ours=[1000, 2000, 3000], limit=[4000, 4000, 4000], bar=Bar(limit=0.9))
    two = row(case="d", ours=None, peers={"Reverb": None})
    notes = {"p: c": "no such package", "p: d": "no such package", "q": "needs root"}
    lines = results.text([one, two], notes, 120).splitlines()
    assert lines[1] == "p"
    [first] = [line for line in lines if line.startswith("  c [1]")]
    told = " ".join(first.split())
    assert told == "c [1] 2,000 (1,000-3,000) u 4,000 - 0.5 - >= 0.9 x limit NO"
    assert "  d [2] [1]" in "\n".join(lines)
    assert lines[-4:] == ["", "1: no such package", "2: Reverb: absent", "q: needs root"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_its_width_however_much_there_is_to_say(width: int) -> None:
    rows = [
        row(
            case=f"Breakout, half-trained policy, batches of {number} sessions of ten ticks",
            unit="sessions/s",
            ours=[1_000_000, 2_000_000, 3_000_000],
            limit=[1_000_000, 2_000_000, 3_000_000],
            peers={
                "Reverb 0.14.0": [1000.0, 2000.0],
                "tinyverse's way": [500.0],
                "lz4 over the stacks": None,
            },
            bar=Bar(limit=0.5, peer=10, peers=("Reverb", "tinyverse")),
        )
        for number in range(3)
    ]
    text = results.text(rows, {"p: c": "a long word of explanation " * 12}, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.count("Reverb 0.14.0; tinyverse's way: 500") == 1


def test_the_file_holds_one_row_a_case(tmp_path: Path) -> None:
    rows = [row(ours=[1.0]), row(case="d", ours=None)]
    results.write(tmp_path / "out.json", rows)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == rows
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.skipif(os.name != "posix", reason="Windows lets few people make links")
def test_a_link_to_the_file_of_rows_stays_one(tmp_path: Path) -> None:
    link, file = tmp_path / "link.json", tmp_path / "rows.json"
    link.symlink_to(file)
    rows = [row(ours=[1.0])]
    results.write(link, rows)
    assert link.is_symlink()
    assert json.loads(file.read_text(encoding="utf-8")) == rows


@pytest.mark.skipif(os.name != "posix", reason="no FIFO")
def test_what_is_no_file_is_not_replaced_by_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(SystemExit) as caught:
        arguments.parsed(["--json", str(path), "codec"])
    assert caught.value.code == 2
    assert (
        f"--json {path} is no file, and it is replaced after each part: name a file"
        in capsys.readouterr().err
    )


def test_the_table_of_the_page_is_made_of_the_rows(tmp_path: Path) -> None:
    one = row(ours=[1000, 2000, 3000], limit=[4000, 4000, 4000], peers={"a | b": 500.0}, bar=Bar(limit=0.9))
    two = row(case="d", ours=None, peers={"Reverb": None})
    rows, file = tmp_path / "rows.json", tmp_path / "page.md"
    results.write(rows, [one, two])
    first, last = "<!-- table -->", "<!-- end of table -->"
    file.write_text(f"before\n{first}\nold\n{last}\nafter\n", encoding="utf-8")
    command = [sys.executable, "-m", "bench_parts.page", str(rows), "--anyway"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    for _ in range(2):  # the second time changes nothing
        subprocess.run(
            [*command, "--into", str(file)], env={**os.environ, "PYTHONPATH": path}, check=True, text=True
        )
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{first}\n\n| part |")
    assert text.endswith(f"|\n\n{last}\nafter\n")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert "2,000 (1,000-3,000) u | 4,000 | 0.5 | 500 a / b | 4 | >= 0.9 x limit | **no** |" in lines[2]
    assert "| d | - | - | - | Reverb: absent | - | - |  |" in lines[3]


def test_rows_of_a_quick_run_or_of_some_parts_do_not_take_the_place_of_a_whole_table() -> None:
    turned = {"median": 2.0, "low": 1.0, "high": 3.0}
    whole = [{**row(), "part": part.name, "ours": turned} for part in PARTS if not part.by_name]
    assert page.doubts(whole) == ""
    assert page.doubts(whole[2:]) == "there is no row of codec, playing"
    quick = [{**one, "ours": {"median": 2.0, "low": 2.0, "high": 2.0}} for one in whole]
    assert "as --quick takes them" in page.doubts(quick)


def test_what_runs_by_name_alone_stays_in_the_page() -> None:
    old = "| part | case |\n|---|---|\n| `codec` | a |\n| `learning` | b |\n|  | c |\n"
    assert page.kept_lines(old, {"codec"}) == ["| `learning` | b |", "|  | c |"]
    assert page.kept_lines(old, {"codec", "learning"}) == []
    assert page.kept_lines("", {"codec"}) == []


def test_a_page_is_not_overwritten_without_a_word(tmp_path: Path, environment: dict[str, str]) -> None:
    rows, file = tmp_path / "rows.json", tmp_path / "page.md"
    results.write(rows, [row(ours=[1.0])])
    text = "<!-- table -->\n\nold\n\n<!-- end of table -->\n"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "bench_parts.page", str(rows), "--into", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no row of codec" in done.stderr
    assert "--anyway" in done.stderr
    assert file.read_text(encoding="utf-8") == text


def test_a_page_without_marks_is_not_touched() -> None:
    for text in ("", "<!-- table -->", "<!-- end of table -->\n<!-- table -->"):
        with pytest.raises(ValueError, match="lacks"):
            page.replaced(text, page.TABLE, "| a |")


def test_the_page_has_the_marks() -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for what in (page.TABLE, page.PROFILE):
        assert "| a |" in page.replaced(text, what, "| a |")


# --- parts


def test_parts_are_named_once_and_taken_in_order() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert chosen([]) == [part for part in PARTS if not part.by_name]
    assert [part.name for part in chosen(["learning"])] == ["learning"]
    assert [part.name for part in chosen(["latency", "codec"])] == ["codec", "latency"]
    with pytest.raises(ValueError, match="codek"):
        chosen(["codek"])


def test_all_that_runs_without_a_name_ends_in_a_quarter_of_an_hour() -> None:
    assert sum(part.takes_s for part in chosen([])) <= 15 * 60


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_has_cases_that_begin_when_they_are_asked_for(part: Part) -> None:
    cases = part.cases(quick=True)
    assert isinstance(cases, Iterator)
    assert inspect.isgenerator(cases)
    assert inspect.getgeneratorstate(cases) == inspect.GEN_CREATED


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    return {**os.environ, "PYTHONPATH": path, "P2PRL_BENCH_CACHE": str(tmp_path)}


def bench(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench_parts", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_quick_run_of_the_cheapest_part(tmp_path: Path, environment: dict[str, str]) -> None:
    done = bench(environment, "codec", "--quick", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr  # what is measured in no time is held against no bar
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert all(list(one) == ASKED for one in rows)
    cases = {one["case"]: one for one in rows}
    assert cases["CartPole-v1, obs: size"]["ok"] is True
    assert all(any(name.startswith(game) for name in cases) for game in pictures.GAMES)
    for one in rows:
        assert (
            one["ours"] is not None or "scripts/bench --setup" in done.stdout
        )  # below the table it says why


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_a_wrong_name_is_told_before_anything_is_installed() -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(ROOT / "scripts" / "bench"), "nonsense"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no part is called nonsense" in done.stderr
    assert done.stderr.count("codec") == 1
    assert "installing" not in done.stderr


def test_names_and_wrong_names(environment: dict[str, str]) -> None:
    listed = bench(environment, "--list")
    assert listed.returncode == 0
    *lines, last, others = listed.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [part.name for part in PARTS]
    assert [int(line.split()[1]) for line in lines] == [part.takes_s for part in PARTS]
    assert f" {sum(part.takes_s for part in chosen([]))} s " in last
    assert "profile" in others
    wrong = bench(environment, "codek")
    assert wrong.returncode == 2
    assert "codec" in wrong.stderr
    nowhere = bench(environment, "codec", "--json", "no/such/folder/rows.json")
    assert nowhere.returncode == 2
    assert "there is no folder no/such/folder" in nowhere.stderr


@pytest.mark.parametrize("part", [scaling, learning])
def test_what_needs_namespaces_says_so_where_there_are_none(
    part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "missing", lambda: "needs root")
    found = list(part.cases(quick=False))
    assert len(found) in (4, 7)
    assert all(one["ours"] is None and one["note"] == "needs root" for one in found)
    assert all(row(**one)["ok"] is None for one in found)


def test_steps_that_were_learned_from_are_not_those_that_were_played() -> None:
    """Of each 100 stored ticks 20 began an episode; 3 updates of 50 ticks are 120 steps, however many were played."""
    before = SimpleNamespace(updates=10, steps=1000, episodes=10)
    after = SimpleNamespace(updates=13, steps=1800, episodes=210)
    assert whole_run.learned_from(before, after, 50) == 3 * 50 * 0.8  # type: ignore[arg-type]
    assert whole_run.learned_from(before, before, 50) == 0  # type: ignore[arg-type]


def test_a_profile_counts_what_a_function_did_itself() -> None:
    raw = (
        "run (p2prl/net/loop.py:98);turn (p2prl/net/loop.py:120) 3\n"
        "run (p2prl/net/loop.py:98);turn (p2prl/net/loop.py:125) 4\n"
        "run (p2prl/net/loop.py:98) 2\n"
        "run (p2prl/net/loop.py:98);Poller.poll (zmq/sugar/poll.py:106) 90\n"
        "<frozen x> 1\nnot a line\n"
    )
    found = profile.own_samples(raw)
    assert found == {"turn (p2prl/net/loop.py)": 7, "run (p2prl/net/loop.py)": 2, "<frozen x>": 1}
    text = profile.markdown([profile.Profile("shard", 0.5, found), profile.Profile("player", 1.0, found)])
    assert text.index("### Player\n\n100% of a core") < text.index("### Shard\n\n50% of a core")
    assert "| 70.0% | `turn (p2prl/net/loop.py)` |" in text


# --- what others are held against


def test_the_bare_update_is_that_of_the_agent() -> None:
    """The limit is no easier than ours: V-trace's targets are the same."""
    rng = np.random.default_rng(1)
    ratio = np.exp(rng.standard_normal((3, 7))).astype(np.float32)
    reward, values = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 7), (3, 8)))
    target, advantage = bare_torch._targets(ratio, reward, np.ones_like(reward), values)
    ours = vtrace(np.log(ratio), reward, np.zeros((3, 7), np.uint8), values, 0.99)
    assert np.allclose(target, ours[0], atol=1e-4)
    assert np.allclose(advantage, ours[1], atol=1e-4)
    assert bare_torch.updates_per_s(bare_torch.vtrace(2, 3), 0.01) > 0


def test_the_bare_step_of_dqn_is_that_of_the_agent() -> None:
    """As many weights, and the same targets of one step."""
    torch = pytest.importorskip("torch")
    what = updates.TRAININGS["dqn, 2x256 units, batches of 64"]
    batches, agent = updates.ready(
        replace(what, settings={**what.settings, "n_step": 1, "reward_scale": 1.0})
    )
    learner: Any = agent.learner("cpu", 1)
    learner._target_flat.neg_()
    batch = batches[0]
    batch["flags"][:9] = TERMINATED
    ticks = learner._of_windows(batch, batch["reward"])
    there = learner._inputs({"obs": batch["obs"][:, 1]})
    valued, choosing = (
        learner._outputs(weights, there).detach() for weights in (learner._target, learner._trainable.tensors)
    )
    assert (valued.argmax(dim=1) != choosing.argmax(dim=1)).any()
    found = bare_torch._double(torch.ones(64, 1), 0.99 * (1 - _ended(batch)), valued, choosing)
    assert torch.allclose(found, ticks.partial + ticks.discount * ticks.following, atol=1e-5)
    bare = bare_torch._network(torch, torch.nn.ReLU, 256, 2)
    assert sum(one.numel() for one in bare.parameters()) == learner._trainable.flat.numel()
    assert bare_torch.updates_per_s(updates.bare_dqn(), 0.01) > 0


def test_the_player_beside_torch_steps_its_slots_as_players_do() -> None:
    rollout, *_ = updates._rollout(updates.TRAININGS["dqn, 2x256 units, batches of 64"])
    rollout.close()
    assert isinstance(rollout, VectorRollout)


def _ended(batch: Any) -> Any:
    """float32 `[N, 1]`: 1 where nothing follows that could be valued."""
    import torch

    return torch.from_numpy(((batch["flags"][:, :1] & TERMINATED) > 0).astype(np.float32))


def moving(rows: int, slots: int, breaks: bool) -> np.ndarray[Any, Any]:
    """Stacks of four frames in which a bright spot moves; with breaks an episode begins now and then."""
    rng = np.random.default_rng(1)
    single = np.zeros((slots, rows + 3, 84, 84), np.uint8)
    for slot in range(slots):
        for at in range(rows + 3):
            y, x = rng.integers(84, size=2)
            single[slot, at, y, x] = 255
    stacks = np.stack([single[:, at : at + rows] for at in range(4)], axis=2).swapaxes(0, 1).copy()
    if breaks:
        stacks[2:5, 1] = stacks[2, 1, 0]  # as an episode begins: four times the same
        stacks[rows // 2, 0] = rng.integers(256, size=(4, 84, 84), dtype=np.uint8)
    return stacks


@pytest.mark.parametrize("breaks", [False, True])
def test_the_limit_of_the_codec_loses_nothing(breaks: bool) -> None:
    stacks = moving(9, 3, breaks)
    assert np.array_equal(codec.unstraight(codec.straight(stacks), stacks.shape), stacks)


def test_absent_peers_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2PRL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("P2PRL_BASELINES", str(tmp_path / "nothing"))
    session = {"obs": np.zeros((3, 2), np.float32)}
    with peers.opened({"cartpole": [session]}) as others:
        assert set(others.there.values()) == {None}
        assert len(others.why) == 2
        figures: dict[str, list[float]] = {}
        others.measure(lambda peer: pytest.fail("nobody is there"), figures)
    assert row(ours=[1.0], peers=figures)["peer_name"].count("absent") == 2
