"""Runs p2prl as a user would: `p2prl host` from its start, start-up included, and its joiners."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from learn_matrix.child import Child
from learn_matrix.kinds import Criterion, Host, Limits, Run, Unavailable

#: Of a greedy criterion: how often the weights are kept, to be judged afterwards.
_KEEP_EVERY_S = 0.25
_EPISODES, _EVAL_SEED = 100, 10_000
#: Beyond a run's own time limit: to start, and to stop.
_SPARE_S = 120.0
_WINDOW = 100


def run(ours: Host, criterion: Criterion, limits: Limits, seed: int, port: int | None = None) -> Run:
    """One seed, to its end.

    Raises:
        Unavailable: the host said, before it had started, what is missing.
    """
    result = Run(seed)
    with tempfile.TemporaryDirectory(prefix="pl-") as name:
        folder = Path(name)
        arguments = _arguments(ours, criterion, limits, seed, port, folder)
        began = time.time()
        with ExitStack() as running:
            host = running.enter_context(
                Child(arguments, _home(folder, "host"), kill_after_s=limits.seconds + _SPARE_S)
            )
            started = False
            for at, event in host.events():
                if event["event"] == "started":
                    started = True
                    _join(running, ours.joiners, int(event["base_port"]), folder)
                elif event["event"] in ("progress", "stopped"):
                    _look(result, criterion, at, event)
            if not started:
                raise Unavailable(host.last_words)
            result.end = result.end or host.last_words
        if criterion.kind == "greedy":
            _judge_checkpoints(result, criterion, folder, began)
    return result


def _arguments(
    ours: Host, criterion: Criterion, limits: Limits, seed: int, port: int | None, folder: Path
) -> list[str]:
    settings = dict(ours.settings)
    if criterion.kind == "greedy":
        settings |= {"train.checkpoint_interval_s": _KEEP_EVERY_S, "train.keep_checkpoints": 10_000}
    steps = criterion.goal if criterion.kind == "steps" else limits.steps
    return [
        *("p2prl", "host", ours.experiment),
        *(("--agent", ours.agent) if ours.agent else ()),
        *(("--env", ours.env) if ours.env else ()),
        *(part for key, value in settings.items() for part in ("--set", f"{key}={_toml(value)}")),
        *("--players", str(ours.players), "--seed", str(seed), "--json"),
        *("--interface", "127.0.0.1", "--name", "learn", "--results", str(folder / "results")),
        *(("--port", str(port)) if port is not None else ()),
        *(("--open",) if ours.joiners else ()),
        *(("--stop-return", str(criterion.goal)) if criterion.kind != "steps" else ()),
        *("--stop-steps", str(round(steps)), "--stop-time", str(limits.seconds)),
    ]


def _toml(value: object) -> str:
    """As TOML has it: JSON does for what settings are."""
    return value if isinstance(value, str) else json.dumps(value)


def _home(folder: Path, name: str) -> dict[str, str]:
    home = folder / name
    home.mkdir(mode=0o700)
    return {"P2PRL_HOME": str(home)}


def _join(running: ExitStack, joiners: int, port: int, folder: Path) -> None:
    for index in range(joiners):
        arguments = ["p2prl", "join", f"127.0.0.1:{port}", "--players", "1", "--name", f"laptop{index}"]
        running.enter_context(Child(arguments, _home(folder, f"joiner{index}"), listen=False))


def _look(result: Run, criterion: Criterion, at: float, event: dict[str, Any]) -> None:
    """Take in one line of the host's."""
    steps, mean = int(event["steps"]), event["return_mean"]
    full = event["return_episodes"] >= _WINDOW and mean is not None
    if event["event"] == "stopped":
        result.end = "" if result.reached else f"{event['reason']}: {event['text']}".rstrip(": ")
    elif full and criterion.kind != "greedy":
        result.curve.append((steps, float(mean)))
    result.lag_mean = event["lag_mean"] if not result.reached else result.lag_mean
    if result.reached or criterion.kind == "greedy":
        return
    if steps >= criterion.goal if criterion.kind == "steps" else full and mean >= criterion.goal:
        result.steps, result.seconds = steps, at


def _judge_checkpoints(result: Run, criterion: Criterion, folder: Path, began: float) -> None:
    """Play with each checkpoint in turn, until one is good enough."""
    kept = sorted(folder.glob("results/*/checkpoints/0*/DONE"), key=lambda path: path.parent.name)
    for done in kept:
        meta = json.loads((done.parent / "meta.json").read_bytes())
        if not meta["updates"]:
            continue
        mean = _greedy_mean(done.parent, folder)
        # What the broker said of steps is some time ago; what was inserted the trainer knows, RESET ticks among it.
        steps = max(int(meta["steps"]), int(meta["inserted"]))
        result.curve.append((steps, mean))
        if mean >= criterion.goal:
            result.steps, result.seconds = steps, done.stat().st_mtime - began
            return


def _greedy_mean(checkpoint: Path, folder: Path) -> float:
    arguments = ["p2prl", "eval", str(checkpoint), "-n", str(_EPISODES), "--seed", str(_EVAL_SEED), "--json"]
    with Child(arguments, {"P2PRL_HOME": str(folder / "host")}) as judge:
        answers = [event for _, event in judge.events()]
    if not answers:
        raise Unavailable(judge.last_words)
    return float(answers[-1]["mean"])
