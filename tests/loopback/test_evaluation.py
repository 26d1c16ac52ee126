"""Players evaluate: real nodes, real jobs; what is shown, what goes wrong, and which checkpoint is best."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from p2prl.core import messages as m
from p2prl.core.jobs import JOB_EPISODES
from p2prl.net.keys import load_or_create
from p2prl.nodes import checkpoint
from p2prl.wire import frames
from p2prl.wire.weights import decode_weights
from tests import kit
from tests.conftest import wait_until
from tests.loopback.survival_kit import RECOVERY_S, family, kill_all
from tests.samples.contrary import greedy_return, updates_of
from tests.samples.envs import TALLY_STEPS

CONTRARY = f"{kit.SAMPLES / 'contrary.py'}:Contrary"
SHY = f"{kit.SAMPLES / 'contrary.py'}:Shy"
EPISODES = 8
#: A job of a node that was killed waits for 15 s of silence, and for a share of play.
EVALUATED_S = 120.0


@dataclass
class Run:
    folder: Path
    base: int
    host: kit.Program
    results: Path

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.base}"

    def status(self) -> kit.Event:
        """As the host's owner sees it."""
        done = kit.run(self.folder, "status", self.target, "--json", name=f"h{self.base}")
        assert done.returncode == 0, done.stderr
        found: kit.Event = json.loads(done.stdout)
        return found

    def join(self, name: str, *flags: str) -> kit.Program:
        return kit.join(self.folder, *flags, name=name, target=self.target, agent=CONTRARY, cwd=kit.ROOT)


@contextmanager
def hosted(folder: Path, *flags: str, agent: str = CONTRARY, share: float = 0.3) -> Iterator[Run]:
    base = kit.free_base()
    settings = (
        *("--env", "tests.samples:Tally-v0", "--agent", agent, "--envs", "2"),
        *("--set", f"play.eval_share={share}", "--set", f"play.eval_episodes={EPISODES}"),
        *("--set", "agent.samples_per_insert=0.1", "--set", "train.checkpoint_interval_s=1"),
    )
    settings = () if "--resume" in flags else settings
    with kit.host(folder, *settings, *flags, name=f"h{base}", port=base, cwd=kit.ROOT) as program:
        yield Run(folder, base, program, Path(program.wait_for("started")["results"]))


def evaluations(run: Run) -> dict[int, kit.Event]:
    """Each evaluation that was shown, by version."""
    return {e["eval_version"]: e for e in run.host.of("progress") if e["eval_version"] is not None}


def version_under_way(run: Run) -> int:
    """Wait for a job; returns the version that is evaluated."""
    with kit.Peer(run.base) as peer:

        def look() -> m.Evaluating | None:
            now = peer.status().evaluating
            return now if now.jobs > 0 else None

        found: Any = wait_until(look, EVALUATED_S, "a job")
        return int(found.version)


def best(run: Run) -> checkpoint.Checkpoint:
    return checkpoint.load(run.results / "checkpoints" / checkpoint.BEST)


def best_mean(run: Run) -> float | None:
    """What the greedy play of `best` earned; None while there is none, or it is being replaced."""
    try:
        return best(run).meta.eval_mean
    except checkpoint.CorruptCheckpoint:
        return None


# --- what is shown, and which is best


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, kit.Event, dict[int, kit.Event]]:
    """A run that went on until an evaluation was worse than one before it, its status then, and its evaluations."""
    folder = tmp_path_factory.mktemp("evaluated")
    with hosted(folder, "--players", "1") as run:

        def fell_off() -> bool:
            means = [e["eval_return_mean"] for e in evaluations(run).values()]
            return len(means) >= 3 and means[-1] < max(means) and best_mean(run) == max(means)

        wait_until(fell_off, 120.0, "an evaluation that is worse than one before, whose weights are kept")
        status = run.status()
        assert run.host.end() == 0
    return run, status, evaluations(run)


Finished = tuple[Run, kit.Event, dict[int, kit.Event]]


def test_each_evaluation_is_of_exactly_one_version(finished: Finished) -> None:
    _, _, seen = finished
    for event in seen.values():
        assert event["eval_episodes"] in (EPISODES, EPISODES - JOB_EPISODES)
        # The greedy policy earns the same in each episode: weights of two stages would give two returns.
        assert event["eval_return_low"] == event["eval_return_mean"] == event["eval_return_high"]
        assert event["eval_return_mean"] == int(event["eval_return_mean"])
    assert len({event["eval_return_mean"] for event in seen.values()}) > 1
    assert all(event["return_mean"] == TALLY_STEPS for event in seen.values() if event["return_episodes"])


def test_best_is_the_one_whose_greedy_play_was_best(finished: Finished) -> None:
    run, _, seen = finished
    found = best(run)
    means = {version: event["eval_return_mean"] for version, event in seen.items()}
    assert found.meta.eval_mean == max(means.values())
    assert found.meta.eval_episodes >= EPISODES - JOB_EPISODES
    assert means[found.meta.version] == max(means.values())
    # It is that version's own state: its weights earn what was measured, and its counters are of that time.
    assert greedy_return(updates_of(found.weights)) == found.meta.eval_mean
    assert updates_of(found.weights) == found.meta.updates == int(found.learner["updates"])
    last = checkpoint.load(checkpoint.candidates(run.results / "checkpoints")[0])
    assert last.meta.updates > found.meta.updates
    done = kit.run(run.folder, "eval", str(run.results), "-n", "2", "--json", cwd=kit.ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mean"] == found.meta.eval_mean


def test_evaluation_keeps_to_its_share_and_the_status_says_how_it_stands(finished: Finished) -> None:
    _, status, _ = finished
    evaluating = status["evaluating"]
    wave = 2 * JOB_EPISODES * TALLY_STEPS
    assert 0 < evaluating["steps"] <= 0.3 * (status["steps"] + evaluating["steps"]) + wave
    assert evaluating["episodes"] == EPISODES
    assert evaluating["refused"] == {}
    assert status["eval_version"] is not None
    [node] = status["nodes"]
    assert node["state"] == "working"


def test_the_curve_of_the_greedy_policy_is_beside_that_of_play(finished: Finished) -> None:
    run, _, seen = finished
    board = EventAccumulator(str(run.results / "tensorboard"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    assert {"eval/return_mean", "eval/return_low", "eval/return_high", "eval/length_mean"} <= tags
    assert "play/return_mean" in tags
    points = board.Scalars("eval/return_mean")
    assert [point.value for point in points][: len(seen)] == [e["eval_return_mean"] for e in seen.values()]
    steps = [point.step for point in points]
    assert steps == sorted(set(steps))
    assert {point.value for point in board.Scalars("eval/length_mean")} == {TALLY_STEPS}
    rows = [json.loads(line) for line in (run.results / "progress.jsonl").read_text().splitlines()]
    assert {row["eval_version"] for row in rows} - {None} >= set(seen)
    assert rows[-1]["eval_return_mean"] is not None


def test_the_bar_of_best_goes_on_after_a_resume(finished: Finished) -> None:
    run, _, seen = finished
    before = best(run).meta
    flags = ("--resume", "--results", str(run.results), "--players", "1")
    with hosted(run.folder, *flags) as again:
        first = again.host.wait_for("progress")
        assert first["eval_version"] in seen, "what was known is shown at once"
        wait_until(lambda: len(evaluations(again)) >= 3, 120.0, "two evaluations")
        assert again.host.end() == 0
        means = [event["eval_return_mean"] for event in evaluations(again).values()]
        after = best(again).meta
    assert before.eval_mean is not None
    assert after.eval_mean == max([before.eval_mean, *means])
    assert min(evaluations(again)) <= before.version or min(evaluations(again)) in seen


def test_without_a_share_nothing_is_evaluated_and_play_decides(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "1", share=0.0) as run:
        best_path = run.results / "checkpoints" / checkpoint.BEST
        wait_until(lambda: (best_path / "DONE").exists(), 60.0, "a best checkpoint")
        run.host.wait_for("progress", lambda e: e["updates"] > 50)
        assert evaluations(run) == {}
        assert run.status()["evaluating"]["episodes"] == 0
        assert run.host.end() == 0
        meta = best(run).meta
    assert (meta.eval_mean, meta.eval_episodes) == (None, 0)
    assert meta.return_mean == TALLY_STEPS
    board = EventAccumulator(str(run.results / "tensorboard"))
    board.Reload()
    assert not [tag for tag in board.Tags()["scalars"] if tag.startswith("eval/")]


# --- what goes wrong


def test_a_joiner_that_is_killed_in_the_middle_of_a_job_costs_nothing_but_time(tmp_path: Path) -> None:
    slow = ("--set", "env.args.tick_s=0.05", "--set", "agent.ticks=4", "--set", "agent.samples_per_insert=2")
    with hosted(tmp_path, "--players", "0", *slow, share=0.5) as run, run.join("one") as one:
        version = version_under_way(run)
        kill_all(family(one))
        with run.join("other") as other:
            run.host.wait_for("progress", lambda e: e["eval_version"] == version, EVALUATED_S)
            status = run.status()
            assert status["eval_episodes"] in (EPISODES, EPISODES - JOB_EPISODES)
            assert status["evaluating"]["refused"] == {}
            assert other.end() == 0
        assert run.host.end() == 0


def test_a_player_that_is_killed_in_the_middle_of_a_job_is_replaced_and_so_is_the_job(tmp_path: Path) -> None:
    slow = ("--set", "env.args.tick_s=0.05", "--set", "agent.ticks=4", "--set", "agent.samples_per_insert=2")
    with hosted(tmp_path, "--players", "1", *slow, share=0.5) as run:
        version = version_under_way(run)
        [player] = run.host.children("player")
        kill_all([player])
        event = run.host.wait_for("progress", lambda e: e["eval_version"] == version, EVALUATED_S)
        assert event["eval_return_low"] == event["eval_return_high"]
        [node] = run.status()["nodes"]
        assert node["player_reports"][0]["restarts"] == 1
        told = [fault for fault in node["faults"] if "ended" in fault or "died" in fault]
        assert any("the player of evaluation job" in fault for fault in told)
        assert all(fault.startswith("player: ") for fault in told), "no environment did that"
        assert run.host.end() == 0


def test_a_new_broker_begins_a_new_candidate_and_knows_the_last_result(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "1") as run:
        run.host.wait_for("progress", lambda e: e["eval_version"] is not None, EVALUATED_S)
        version_under_way(run)
        known, seen = evaluations(run), len(run.host.of("progress"))
        [broker] = run.host.children("broker")
        kill_all([broker])
        wait_until(lambda: run.status()["run"]["term"] == 2, RECOVERY_S, "a new broker")
        assert run.status()["eval_version"] is not None
        wait_until(lambda: evaluations(run).keys() - known.keys(), EVALUATED_S, "another evaluation")
        assert all(event["eval_version"] is not None for event in run.host.of("progress")[seen:])
        assert evaluations(run).keys() >= known.keys()
        refused = run.status()["evaluating"]["refused"]
        assert refused.keys() <= {"unknown_job"}, "the result of a job that the one before had handed out"
        assert run.host.end() == 0


def test_an_agent_that_raises_ends_the_job_and_not_the_player(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "1", agent=SHY) as run:

        def told() -> kit.Event | None:
            [node] = run.status()["nodes"]
            return node if any("no greedy play here" in fault for fault in node["faults"]) else None

        node: Any = wait_until(told, RECOVERY_S, "the fault in the status")
        steps = node["steps"]
        run.host.wait_for("progress", lambda e: e["steps"] > steps + 1000)
        [node] = run.status()["nodes"]
        assert node["state"] == "working"
        assert [fault.partition(":")[0] for fault in node["faults"]] == ["agent"]
        assert node["player_reports"][0]["restarts"] == 0
        assert evaluations(run) == {}
        assert run.host.end() == 0


# --- results that are none, from a member made by hand


class Hand:
    """A member without players, which takes jobs all the same."""

    def __init__(self, base: int, evaluators: int) -> None:
        self.peer = kit.Peer(base)
        self.boot_id = secrets.token_hex(8)
        self.steps = 0
        hello = m.Hello(
            protocol=m.PROTOCOL,
            version="0",
            role="member",
            name="hand",
            boot_id=self.boot_id,
            players=1,
            evaluators=evaluators,
        )
        self.welcome = self.peer.ask(hello, m.Welcome)
        self.jobs: dict[int, tuple[m.EvalJob, list[Any]]] = {}

    def beat(self) -> None:
        """A heartbeat, with the jobs that came so far."""
        self.steps += 1
        self.peer.say(
            m.Heartbeat(
                boot_id=self.boot_id,
                state="working",
                steps=self.steps,
                evaluating=dict.fromkeys(self.jobs, self.steps),
            )
        )

    def job(self) -> tuple[m.EvalJob, list[Any]]:
        """Beats until a job comes."""

        def look() -> tuple[m.EvalJob, list[Any]] | None:
            self.beat()
            while (received := self.peer.hear(0.5)) is not None:
                message = frames.decode_from_broker(received.frames[0])
                if isinstance(message, m.EvalJob):
                    self.jobs[message.job] = (message, received.frames[1:])
                    return self.jobs[message.job]
            return None

        found: Any = wait_until(look, RECOVERY_S, "an evaluation job")
        return found

    def give(self, job: m.EvalJob, episodes: list[tuple[float, int]]) -> None:
        self.jobs.pop(job.job, None)
        self.peer.say(m.EvalResult(job=job.job, episodes=episodes, steps=10))


def test_what_cannot_be_and_what_nobody_waits_for_is_refused_and_counted(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "1", share=0.9) as run:
        hand = Hand(run.base, evaluators=1)
        with hand.peer:
            job, [header, payload] = hand.job()
            named = frames.decode_weights_header(header)
            assert (named.version, named.candidate) == (job.version, True)
            assert "place" in decode_weights(bytes(payload))
            assert job.episodes <= JOB_EPISODES
            hand.give(job, [(float("nan"), 1)] * job.episodes)
            # It waits a while for the next one.
            job, _ = hand.job()
            good = [(5.0, TALLY_STEPS)] * job.episodes
            hand.give(job, good)
            hand.give(job, good)
            hand.peer.say(m.EvalResult(job=10**9, episodes=good))
            hand.beat()

            def refused() -> dict[str, int] | None:
                found: dict[str, int] = run.status()["evaluating"]["refused"]
                return found if sum(found.values()) >= 3 else None

            counts: Any = wait_until(refused, 20.0, "three refusals")
            assert counts == {"not_finite": 1, "duplicate": 1, "unknown_job": 1}
            [row] = [node for node in run.status()["nodes"] if node["name"] == "hand"]
            assert row["refused_by_host"] == {"not_finite": 1}
        assert run.host.end() == 0


def test_who_is_put_out_has_given_nothing(tmp_path: Path) -> None:
    """Its episodes in the candidate that is under way are played again by others."""
    slow = ("--set", "env.args.tick_s=0.05", "--set", "agent.ticks=4", "--set", "agent.samples_per_insert=2")
    with hosted(tmp_path, "--players", "1", *slow, share=0.9) as run:
        hand, owner = Hand(run.base, evaluators=1), run.folder / f"home-h{run.base}" / "owner.key"
        # By hand: a command takes longer to start than the others may need for the rest of the candidate.
        with hand.peer, kit.Peer(run.base, keys=load_or_create(owner)) as host:
            job, _ = hand.job()
            hand.give(job, [(-1000.0, TALLY_STEPS)] * job.episodes)
            hand.peer.status()  # it is answered after what was given before
            host.ask(m.QuarantineAsk(key=hand.peer.keys.public), m.NodesReply)
            event = run.host.wait_for("progress", lambda e: e["eval_version"] == job.version, EVALUATED_S)
            assert event["eval_return_low"] >= 0
        assert run.host.end() == 0


def test_who_does_not_volunteer_gets_no_job(tmp_path: Path) -> None:
    with hosted(tmp_path, "--players", "1") as run:
        hand = Hand(run.base, evaluators=0)
        with hand.peer:

            def evaluated() -> bool:
                hand.beat()
                return bool(evaluations(run))

            wait_until(evaluated, RECOVERY_S, "an evaluation")
            while (received := hand.peer.hear(0.1)) is not None:
                assert not isinstance(frames.decode_from_broker(received.frames[0]), m.EvalJob)
        assert run.host.end() == 0
