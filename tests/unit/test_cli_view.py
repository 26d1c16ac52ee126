"""The views: they fit, they say what matters, and nothing that another machine says steers the terminal."""

from __future__ import annotations

import io
import re
import unicodedata
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from p2prl.cli import view
from p2prl.cli.figures import broken
from p2prl.cli.joincode import code_text, join_hint
from p2prl.cli.lines import member_line
from p2prl.cli.output import safe
from p2prl.cli.status import _print_json as as_json
from p2prl.cli.status import _print_views as show
from p2prl.core.messages import Books, Evaluating, Evaluation, PlayerReport, Seat, ShardStatus, TrainerReport
from p2prl.nodes.report import Silence
from p2prl.nodes.slot import Slot
from p2prl.nodes.status import trainer_state
from tests.unit import cli_samples as samples


def drawn(renderable: RenderableType, width: int = 80) -> list[str]:
    console = Console(width=width, height=500, file=io.StringIO(), color_system=None, force_terminal=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 20), (200, 60)])
@pytest.mark.parametrize("nodes", [0, 1, 3, 9, 40])
def test_a_run_fits_the_terminal(width: int, height: int, nodes: int) -> None:
    stalled = [samples.node(i, state="stalled", reason="it stands still " * 20) for i in range(nodes)]
    noisy = samples.status(nodes=stalled, warnings=["a long warning " * 30] * 5, waiting_nodes=["x" * 99] * 9)
    for reply in (noisy, samples.status(max(1, nodes)), samples.status(nodes=stalled, warnings=[])):
        code = code_text("17-mammoth-whistle", 30, 7000.0)
        lines = drawn(view.run_view(reply, "p2prl join attic", width, height, [1.0, 2.0, 3.0], code), width)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_no_height_shows_every_node() -> None:
    text = "\n".join(drawn(view.run_view(samples.status(50))))
    assert all(f"laptop-{index:02d}" in text for index in range(1, 50))
    assert "more" not in text


def test_a_small_terminal_says_how_many_nodes_it_leaves_out() -> None:
    lines = drawn(view.run_view(samples.status(50), height=23))
    shown = sum(" working " in line for line in lines if line.startswith(("laptop", "attic")))
    assert any(f"and {50 - shown} more" in line for line in lines)
    assert shown >= 5


def test_the_run_says_what_matters() -> None:
    text = "\n".join(drawn(view.run_view(samples.status(), join_hint(samples.STARTED), 120), 120))
    for fact in (
        "cartpole-1129", "CartPole-v1", "dqn", "attic", "1 m 42 s", "423.7", "100 episodes", "312.0",
        "1,234,567", "18,452/s", "5,123", "12,345", "v617", "samples 1.4 versions old", "1,230 stored", "12 pending",
        "4 stale", "2 dropped", "5 duplicate", "100,000 ticks", "12.4 MB", "training", "on cpu", "node (4)",
        "laptop-03", "192.0.2.23", "p2prl join attic", "p2prl join 192.0.2.20", "the disk is full",
    ):  # fmt: skip
        assert fact in text, fact


def test_greedy_play_stands_under_that_of_the_players() -> None:
    assert not any("greedy" in line for line in drawn(view.run_view(samples.status())))
    assert "greedy" not in view.run_line(samples.status())
    last = Evaluation(
        version=600,
        episodes=20,
        return_mean=451.25,
        return_low=440.0,
        return_high=462.5,
        length_mean=451.25,
        steps=1_000_000,
    )
    now = Evaluating(version=617, done=8, episodes=20, jobs=2)
    status = samples.status(evaluation=last, evaluating=now)
    lines = drawn(view.run_view(status))
    [line] = [line for line in lines if line.startswith("greedy")]
    assert line == "greedy   451.2   440.0 to 462.5   over 20 episodes, weights v600   v617: 8 of 20"
    assert lines[lines.index(line) - 1].startswith("return")
    assert "greedy 451.2 (v600)" in view.run_line(status)
    [first] = [
        one for one in drawn(view.run_view(samples.status(evaluating=now))) if one.startswith("greedy")
    ]
    assert first == "greedy   -   v617: 8 of 20"


def test_the_reasons_of_refusals_stand_beside_the_counts_or_below_them() -> None:
    for draw in (
        lambda width: drawn(view.run_view(samples.status(), width=width), width),
        lambda width: drawn(view.member_view(samples.member(), None, width), width),
    ):
        assert "3 refused (not_finite 2, oversize 1)" in "\n".join(draw(160))
        lines = draw(80)
        [index] = [index for index, line in enumerate(lines) if line.startswith("bundles")]
        assert lines[index].endswith("3 refused, 4 stale, 2 dropped, 5 duplicate")
        assert lines[index + 1].strip() == "refused: not_finite 2, oversize 1; dropped: window_full 2"


WORDS = [f"word{index}" for index in range(40)]


def test_no_reason_is_cut_where_all_of_a_run_is_shown() -> None:
    """`p2prl status` cut reasons at 80 columns, and told of three nodes in trouble."""
    nodes = [
        samples.node(1, reason=" ".join(f"a{word}" for word in WORDS)),
        samples.node(2, faults=[" ".join(f"b{word}" for word in WORDS)]),
        samples.node(3, refused_by_host={f"c{word}": 1 for word in WORDS}),
        *(samples.node(index, state="stalled", reason=f"still {index}") for index in range(4, 9)),
    ]
    reply = samples.status(
        nodes=nodes,
        trainer_state="waiting",
        trainer_reason=" ".join(f"d{word}" for word in WORDS),
        warnings=[f"warning {index} " + " ".join(WORDS) for index in range(5)],
    )
    for width in (60, 80, 120, 200):
        text = " ".join(" ".join(drawn(view.run_view(reply, width=width), width)).split())
        for letter in "abcd":
            assert all(f"{letter}{word}" in text for word in WORDS), (width, letter)
        assert all(f"! laptop-0{index}: still {index}" in text for index in range(4, 9))
        assert all(f"! warning {index} {' '.join(WORDS)}" in text for index in range(5))


def test_a_short_reason_stands_beside_its_node_a_long_one_below_the_table() -> None:
    nodes = [samples.node(1, reason="short"), samples.node(2, reason="long " * 9)]
    lines = drawn(view.run_view(samples.status(nodes=nodes, warnings=[]), width=80, height=40))
    assert any(line.startswith("laptop-01") and line.rstrip().endswith(" short") for line in lines)
    assert "! laptop-02: " + ("long " * 9).strip() in lines
    assert not any(line.startswith("! laptop-01") for line in lines)


def test_where_warnings_have_no_room_it_is_said_where_they_are() -> None:
    warnings = [f"warning {index}" for index in range(30)]
    lines = drawn(view.run_view(samples.status(warnings=warnings), width=80, height=30))
    assert len(lines) <= 30
    assert "! warning 5" in lines
    assert lines[-1] == "  … and more: p2prl status"


def test_a_status_in_a_pipe_is_not_cut_to_the_width_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "no steps for 12 s: " + "the environment waits for its simulator " * 3 + "the end"
    show([samples.status(nodes=[samples.node(1, state="away", reason=reason)], warnings=[])])
    assert f"! laptop-01: {reason}" in capsys.readouterr().out.splitlines()


def test_a_silence_is_told_once_on_stderr_and_so_is_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    reply, silence = samples.status(warnings=[]), Silence("attic", 0.0)
    as_json([reply, silence, silence, reply, reply, silence])
    out, errors = capsys.readouterr()
    assert len(out.splitlines()) == 3
    first, back, second = errors.splitlines()
    assert re.fullmatch(r"p2prl: attic does not answer since [\d:]{8}; trying again until Ctrl-C", first)
    assert back == "p2prl: attic answers again"
    assert second == first
    show(iter([reply, silence]))
    assert capsys.readouterr().err.splitlines() == [first]


def test_two_figures_never_have_one_name() -> None:
    """What is of all slots, and how old weights and samples are, say so."""
    lines = drawn(view.run_view(samples.status(warnings=[]), width=160), 160)
    [head] = [line for line in lines if line.startswith("node (")]
    figures = "\n".join(lines[: lines.index(head)])
    assert "return (all)" in head
    assert "all slots 312.0" in figures
    assert "behind" in head
    assert "lag" not in head.split()
    assert "samples 1.4 versions old" in figures


def test_what_did_not_happen_takes_no_room() -> None:
    text = "\n".join(drawn(view.run_view(samples.status(bundles=Books(produced=1, stored=1)))))
    assert "1 stored, 0 pending" in text
    for word in ("refused", "stale", "dropped", "duplicate", "restarted"):
        assert word not in text.partition("node (")[0]


def test_trouble_is_shown_where_it_is() -> None:
    nodes = [samples.node(1, state="stalled", reason="no steps for 12 s"), samples.node(2, state="gone")]
    shards = [ShardStatus(index=0, state="working"), ShardStatus(index=1, state="silent", starts=3)]
    reply = samples.status(
        nodes=nodes, shards=shards, trainer_state="waiting", trainer_reason="1,000 ticks first"
    )
    lines = drawn(view.run_view(reply))
    assert any("#1 silent" in line and "restarted 2x" in line for line in lines)
    assert any("waiting" in line and "1,000 ticks first" in line for line in lines)
    assert any(line.startswith("laptop-01") and "stalled" in line and "no steps" in line for line in lines)
    assert any("node (1 of 2)" in line for line in lines)
    assert "! laptop-01: no steps for 12 s" in lines


def test_a_player_that_died_is_told_until_it_is_back() -> None:
    faults = ["environment: slot 0: a NaN", "player: died (killed by signal 9)"]
    well = PlayerReport(rank=0, state="working", steps=9)
    for second, last in (
        (PlayerReport(rank=1, state="starting"), faults[1]),
        (PlayerReport(rank=1, state="working", steps=9, reason="the player died"), faults[1]),
        (well, faults[0]),
    ):
        node = samples.node(1, faults=faults, player_reports=[well, second])
        text = "\n".join(drawn(view.run_view(samples.status(nodes=[node], warnings=[]), width=120), 120))
        assert [fault for fault in faults if fault in text] == [last]


def test_that_something_starts_is_said_once() -> None:
    player = Slot(Seat(rank=0, seed=1)).report(0.0)
    member = samples.member(state="starting", reason=player.reason, players=[])
    trainer, why = trainer_state(TrainerReport(state="starting"), 0.0, [])
    host = samples.status(trainer_state=trainer, trainer_reason=why, warnings=[])
    for line in (member_line(member), *drawn(view.member_view(member, None)), *drawn(view.run_view(host))):
        assert line.count("start") <= 1, line
    assert "starting (loading the environment and the agent)" in member_line(member)
    assert "trainer starting: loading the agent" in view.run_line(host)


def test_why_nodes_earn_differently_can_be_seen() -> None:
    """G3, case 34: with the same weights, one explores and the other does not."""
    nodes = [
        samples.node(1),
        samples.node(2, levels=(0.5, 0.5), return_mean=None, return_mean_all=None, lag=7),
    ]
    for width in (110, 150, 200):
        lines = drawn(view.run_view(samples.status(nodes=nodes, warnings=[]), width=width), width)
        head = next(line for line in lines if line.startswith("node ("))
        first, second = (next(line for line in lines if line.startswith(f"laptop-0{n}")) for n in (1, 2))
        for name, one, other in (
            ("return (all)", "187.2", "-"), ("explores", "0-0.75", "0.5"), ("episodes", "431", "431"),
            ("behind", "1", "7"),
        ):  # fmt: skip
            end = head.index(name) + len(name)
            assert first[:end].endswith(f" {one}"), (name, first)
            assert second[:end].endswith(f" {other}"), (name, second)
        assert ("Linux" in first) == (width >= 150)


def test_the_join_code_stands_under_the_hint_and_can_be_read_off_a_small_screen() -> None:
    reply, hint = samples.status(40), join_hint(samples.STARTED)
    lines = drawn(view.run_view(reply, hint, 80, 23, code=code_text("17-maple-otter", 3, 3599.0)))
    assert lines[1].startswith("join with p2prl join attic")
    assert lines[2] == "join code 17-maple-otter   for 3 more nodes, for 59 m 59 s"
    assert len(lines) <= 23
    unlimited = drawn(view.run_view(reply, hint, 80, 23, code=code_text("17-maple-otter", None, None)))
    assert unlimited[2] == "join code 17-maple-otter"
    assert "1 more node," in code_text("17-maple-otter", 1, 5.0).plain


@pytest.mark.parametrize("width", [29, 37, 42, 57, 77])
def test_what_is_to_be_typed_is_never_cut(width: int) -> None:
    """A terminal of 32, 40, 45, 60 or 80 columns leaves so many."""
    for address, name in (("192.168.178.123", "attic"), ("2001:db8:1234:5678:9abc:def0:1234:5678", "x" * 40)):
        info = replace(samples.STARTED, name=name, address=address, addresses=(address,), base_port=47900)
        hint, code = join_hint(info), code_text("17-mammoth-whistle", 30, 2700.0)
        lines = drawn(view.run_view(samples.status(), hint, width, 40, code=code), width)
        head = lines[1 : lines.index("")]
        assert max(map(len, head)) <= width
        assert "".join("".join(head).split()) == "".join(f"join with {hint} join code {code.plain}".split())
        assert any("17-mammoth-whistle" in line for line in head)
        joined = replace(samples.JOINED, address=address, base_port=47900)
        title = drawn(view.member_view(samples.member(), joined, width), width)
        assert f"{address}:47900" in "".join(title[: title.index("")])


@pytest.mark.parametrize(
    ("text", "width", "pieces"),
    [
        ("abcdef", 4, ["abcd", "ef"]),
        ("教室の計算機", 4, ["教室", "の計", "算機"]),
        ("a教室の計", 4, ["a教", "室の", "計"]),  # one cell stays free
        ("教室", 1, ["教", "室"]),  # there is no less
        ("ne\u0301ne\u0301", 2, ["ne\u0301", "ne\u0301"]),  # an accent takes no cell
    ],
)
def test_a_word_that_is_broken_fits_by_cells(text: str, width: int, pieces: list[str]) -> None:
    assert [piece.plain for piece in broken(Text(text), width)] == pieces


def test_a_warning_and_a_reason_in_wide_letters_are_whole() -> None:
    told, why = "教室の計算機は動きません" * 3, "環境が見つかりません" * 3
    reply = samples.status(warnings=[told], trainer_state="failed", trainer_reason=why)
    lines = drawn(view.run_view(reply, "p2prl join attic", 40, 40), 40)
    assert told in "".join(line[2:] for line in lines)
    assert why in "".join("".join(lines).split())
    assert max(map(cell_len, lines)) <= 40


@pytest.mark.parametrize(("width", "height"), [(29, 23), (37, 23), (42, 24)])
def test_on_a_narrow_terminal_a_nodes_name_and_state_are_whole(width: int, height: int) -> None:
    status, code = samples.status(30), code_text("17-mammoth-whistle", 30, 2700.0)
    hint = join_hint(replace(samples.STARTED, address="192.168.178.123", base_port=47900))
    lines = drawn(view.run_view(status, hint, width, height, code=code), width)
    assert len(lines) <= height
    row = next(line for line in lines if line.startswith("attic"))
    assert row.split()[:3] == ["attic", "(own)", "working"]


def test_who_waits_to_be_let_in_is_the_first_warning() -> None:
    for names, told in (
        (["ann"], "! 1 node waits to be let in (ann): p2prl nodes"),
        (["ann", "bob"], "! 2 nodes wait to be let in (ann, bob): p2prl nodes"),
        (["a", "b", "c", "d"], "! 4 nodes wait to be let in (a, b, c, …): p2prl nodes"),
    ):
        lines = drawn(view.run_view(samples.status(waiting_nodes=names, warnings=["something"])))
        assert next(line for line in lines if line.startswith("!")) == told
    assert view.waiting_line(samples.status()) == ""


def test_a_node_that_was_put_out_is_shown_with_what_was_refused_of_it() -> None:
    nodes = [
        samples.node(1, standing="quarantined", reason="not_finite 10 times within a minute"),
        samples.node(2, standing="removed", refused_by_host={"oversize": 1, "not_finite": 2000}),
        samples.node(3, refused_by_host={"malformed": 7}),
    ]
    lines = drawn(view.run_view(samples.status(nodes=nodes, warnings=[]), width=145), 145)
    rows = {line.split()[0]: line for line in lines if line}
    assert " quarantined " in rows["laptop-01"]
    assert "not_finite 10 times" in rows["laptop-01"]
    assert " removed " in rows["laptop-02"]
    assert "refused: not_finite 2,000, oversize 1" in rows["laptop-02"]
    assert " working " in rows["laptop-03"]
    assert "refused: malformed 7" in rows["laptop-03"]


def test_what_was_refused_for_a_standing_goes_with_it() -> None:
    for standing in ("admitted", "removed"):
        nodes = [samples.node(1, standing=standing, refused_by_host={"removed": 4, "not_admitted": 1})]
        shown = "\n".join(drawn(view.run_view(samples.status(nodes=nodes, warnings=[]), width=145), 145))
        assert ("refused: removed 4" in shown) is (standing == "removed")
        assert "not_admitted" not in shown


def test_nodes_of_before_the_hosts_start_are_counted_apart() -> None:
    nodes = [
        samples.node(1, name="here"),
        samples.node(2, name="left", state="gone"),
        samples.node(3, name="earlier", state="gone", before=True),
    ]
    status = samples.status(nodes=nodes, warnings=[])
    for width, last in (
        (80, "1 node of before not back: p2prl status --json"),
        (44, "1 node of before not back"),
    ):
        lines = drawn(view.run_view(status, width=width), width)
        assert any(line.startswith("node (1 of 2)") for line in lines)
        assert not any("earlier" in line for line in lines)
        assert last in lines
    assert "nodes 1 of 2 " in view.run_line(status) + " "
    assert len(drawn(view.run_view(status, height=20), 80)) <= 20


def test_a_trainer_that_stands_still_and_skipped_updates_are_seen() -> None:
    reply = samples.status(trainer_state="stalled", trainer_reason="no update for 31 s: nobody", warnings=[])
    lines = drawn(view.run_view(reply))
    assert "! trainer: no update for 31 s: nobody" in lines
    assert "trainer stalled: no update for 31 s: nobody" in view.run_line(reply)
    assert not [line for line in lines if "skipped" in line]
    reply = samples.status(updates_skipped=3)
    assert any("12,345, 3 skipped" in line for line in drawn(view.run_view(reply)))
    assert "updates 12,345, 3 skipped" in view.run_line(reply)


FAILURE = (
    "learning failed: 20 updates in a row were skipped, because the loss is nan; the last good checkpoint is "
    "/home/somebody/p2prl/results/tests-samples-paced-v0-diverging-20261130-020531/checkpoints/0000000020-v8 "
    "(20 updates); try a lower agent.learning_rate (it is 0.5), and look at the rewards of Paced-v0"
)


def test_a_failure_is_told_to_its_end_and_once() -> None:
    again = [f"the trainer failed once: {FAILURE}"]
    reply = samples.status(40, trainer_state="failed", trainer_reason=FAILURE, warnings=again)
    assert view.ended(reply).warnings == []
    for height in (24, None):
        lines = drawn(view.run_view(reply, "p2prl join attic", 80, height))
        assert height is None or len(lines) <= height
        told = " ".join(line.strip("! ") for line in lines)
        for part in ("0000000020-v8", "(20 updates)", "the rewards of Paced-v0"):
            assert part in told.replace(" 0", "0"), part
        assert told.count("learning failed") == 1
    assert view.run_line(reply).endswith("trainer failed")


def test_the_title_keeps_how_long_it_runs_and_that_it_stops() -> None:
    for reason, told in (("signal", "asked to end"), ("return", "return reached"), ("new", "new")):
        reply = samples.status(run_name="tests-samples-paced-v0-diverging-20261130-020531", stopping=reason)
        title = drawn(view.run_view(reply))[0]
        assert "1 m 42 s" in title
        assert f"stopping: {told}" in title
        assert len(title) <= 80


def test_after_the_end_nothing_trains() -> None:
    for state, shown in (("training", "stopped"), ("waiting", "stopped"), ("failed", "failed")):
        reply = view.ended(samples.status(trainer_state=state, trainer_reason="why", stopping="error"))
        [line] = [line for line in drawn(view.run_view(reply)) if line.startswith("trainer")]
        assert line == f"trainer  {shown}   on cpu"
        assert view.run_line(reply).endswith(f"trainer {shown}")
        assert "why" not in "\n".join(drawn(view.run_view(reply)))


def test_before_the_first_episode_and_weights_nothing_is_made_up() -> None:
    reply = samples.status(
        return_mean=None, return_mean_all=None, return_episodes=0, episodes=0, weights_version=-1, nodes=[]
    )
    text = "\n".join(drawn(view.run_view(reply)))
    assert "no episode ended yet" in text
    assert "no weights yet" in text
    assert "no node is here" in text
    assert "None" not in text
    assert "None" not in view.run_line(reply)


def test_until_the_least_exploring_play_has_a_mean_that_of_all_slots_stands_under_its_own_name() -> None:
    reply = samples.status(return_mean=None, return_episodes=0, episodes=7, return_mean_all=21.34)
    [line] = [line for line in drawn(view.run_view(reply, width=80)) if line.startswith("return")]
    assert line == "return   -   all slots 21.3   none yet of the least exploring"
    assert view.run_line(reply).startswith("return - (all slots 21.3)  steps")
    later = samples.status(return_mean=30.0, return_episodes=1, return_mean_all=21.34)
    [line] = [line for line in drawn(view.run_view(later, width=80)) if line.startswith("return")]
    assert line.startswith("return   30.0   over 1 episode   all slots 21.3")
    assert view.run_line(later).startswith("return 30.0 (of 1)")


def test_hostile_names_never_reach_the_terminal() -> None:
    bad = samples.HOSTILE
    nodes = [samples.node(1, name=bad, address=bad, system=bad, state=bad, reason=bad, faults=[bad])]
    nodes.append(samples.node(2, name=bad, state="stalled", reason=bad))
    nodes.append(samples.node(3, name=bad, refused_by_host={bad: 3}))
    books = Books(produced=1, refused=1, refused_reasons={bad: 1})
    reply = samples.status(
        waiting_nodes=[bad], nodes=nodes, run_name=bad, host_name=bad, env=bad, agent=bad, bundles=books,
        warnings=[bad], device=bad, trainer_state=bad, trainer_reason=bad, stopping=bad,
        shards=[ShardStatus(index=0, state=bad)],
    )  # fmt: skip
    seat = samples.member(host_name=bad, state=bad, reason=bad, books=books)
    lines = [
        *drawn(view.run_view(reply, width=200), 200),
        *drawn(view.run_view(reply)),
        *drawn(view.member_view(seat, None)),
        view.run_line(reply),
        member_line(seat),
    ]
    told = [char for line in lines for char in line if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")]
    assert told == []
    assert any("[red]x[/red]" in line for line in lines), "markup must be shown, not obeyed"
    assert not any(line.startswith("forged") for line in lines)


def test_safe_keeps_ordinary_text_and_cuts_long_text() -> None:
    assert safe("Zoë's лаптоп 3") == "Zoë's лаптоп 3"
    assert safe("a\tb\n\nc") == "a b c"
    assert safe("\x1b[31m") == "?[31m"
    assert safe("x" * 50, 10) == "x" * 9 + "…"


def test_the_member_says_how_it_does() -> None:
    text = "\n".join(drawn(view.member_view(samples.member(), samples.JOINED)))
    for fact in (
        "attic",
        "CartPole-v1",
        "192.0.2.20:47800",
        "working",
        "123,456",
        "4,210/s",
        "v617, 2 behind",
    ):
        assert fact in text, fact
    assert "1 failed" in text
    assert "boom" in text
    waiting = samples.member(
        state="searching", reason="no host yet", host_name="", weights_version=-1, players=()
    )
    assert "no host yet" in "\n".join(drawn(view.member_view(waiting, None)))


def test_at_its_end_a_member_has_no_players_and_no_speed() -> None:
    for state in ("stopped", "failed"):
        last = samples.member(state=state, steps_per_s=0.0, players=())
        text = "\n".join(drawn(view.member_view(last, samples.JOINED)))
        assert f"state    {state}" in text
        assert "123,456   episodes 812" in text
        assert "players" not in text
        assert member_line(last).startswith(f"{state}  host attic  steps 123,456  weights")


def test_a_member_says_what_waits_on_disk_and_that_it_plays_on() -> None:
    away = samples.member(
        state="away", reason="attic was not heard for 25 s", spooled=790, spooled_bytes=64_200_000
    )
    told = "\n".join(drawn(view.member_view(away, samples.JOINED), 120))
    for text in (told, member_line(away)):
        assert "12 pending (790 on disk, 64.2 MB)" in text
        assert "attic was not heard for 25 s" in text
        assert "playing on" in text
    still = samples.member(state="away", reason="attic was not heard for 25 s", steps_per_s=0.0)
    assert "playing on" not in member_line(still)
    assert "waiting for the host" in member_line(still)
    assert "waiting for the host" not in member_line(samples.member())
    assert "on disk" not in member_line(still)
    assert "playing on" not in member_line(samples.member())


def test_why_a_member_does_not_play_is_told_to_its_end() -> None:
    reason = "Nan-v0: slot 0: step gave the reward nan; " * 3 + "the end"
    failing = [PlayerReport(rank=0, state="failed", reason=reason)]
    for member in (
        samples.member(state="paused", reason=reason, players=()),
        samples.member(players=tuple(failing)),
    ):
        lines = drawn(view.member_view(member, samples.JOINED))
        assert max(map(len, lines)) <= 80
        assert "the end" in " ".join(lines)
    short = drawn(view.member_view(samples.member(state="away", reason="not heard"), samples.JOINED), 120)
    assert any(line.startswith("state    away") and line.endswith("not heard") for line in short)


@pytest.mark.parametrize(
    ("name", "address", "port", "told"),
    [
        ("attic", "192.0.2.1", 47800, "p2prl join attic   or   p2prl join 192.0.2.1"),
        ("attic", "192.0.2.1", 47900, "p2prl join attic   or   p2prl join 192.0.2.1:47900"),
        ("big attic", "2001:db8::1", 47900, "p2prl join 'big attic'   or   p2prl join [2001:db8::1]:47900"),
    ],
)
def test_the_hint_can_be_pasted_into_a_shell(name: str, address: str, port: int, told: str) -> None:
    info = replace(samples.STARTED, name=name, address=address, base_port=port)
    assert join_hint(info) == told


def test_the_hint_of_a_host_on_loopback_alone_is_one_that_works() -> None:
    info = replace(samples.STARTED, address="127.0.0.1", addresses=("127.0.0.1", "::1"), base_port=47800)
    assert join_hint(info) == "p2prl join 127.0.0.1   # on this machine: no other one reaches it"
    assert "p2prl join attic" in join_hint(replace(info, name="attic", addresses=("127.0.0.1", "192.0.2.1")))


def test_bars_follow_the_values() -> None:
    assert view.bars([0, 1, 2, 3], 4) == "▁▃▆█"
    assert view.bars([500.0] * 30, 10) == "▄" * 10, "as good as ever is not the worst"
    assert view.bars([0, 0], 10) == "▄▄"
    assert view.bars([0.1 + 0.2, 0.3], 10) == "▄▄"
    assert view.bars([1], 10) == ""
    assert len(view.bars(list(range(1000)), 40)) == 40
