"""`p2prl eval` and `p2prl test`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2prl.cli.context import Interfaces, Json, Verbose, Wait
from p2prl.cli.eval_progress import eval_progress
from p2prl.cli.units import whole
from p2prl.errors import UsageError
from p2prl.words import many

if TYPE_CHECKING:
    from p2prl.nodes.evaluate import EvalResult

Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", parser=whole("--seed", 0, None, 7), help="Seeds the episodes."),
]
Episodes = Annotated[
    int,
    typer.Option(
        "--episodes",
        "-n",
        metavar="EPISODES",
        parser=whole("--episodes", 1, None, 20),
        help="How many episodes to play.",
    ),
]


def evaluate(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|ADDRESS|RUN_DIR",
            help="A host's name or address, or a run's folder; default: this machine's host, or the one on this LAN.",
        ),
    ] = None,
    episodes: Episodes = 20,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="DIR", help="Write mp4 videos of the episodes here; takes p2prl[video]."
        ),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Write them into the run's own folder, under videos/.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write a row for each episode: its number, seed, return, length."
        ),
    ] = None,
    seed: Seed = 0,
    wait: Wait = 5.0,
    interfaces: Interfaces = None,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """Play without exploring, with a host's newest weights or a run's best ones, and tell the score."""
    from p2prl.cli.output import write_json, write_line
    from p2prl.nodes.evaluate import check_csv, evaluate_target, write_csv

    if video and record is not None:
        raise UsageError("--video and --record name two places; give one of them")
    if csv is not None:
        check_csv(csv)
    with eval_progress() as progress:
        result = evaluate_target(
            target, episodes, seed, record, progress, video, wait, tuple(interfaces or ())
        )
    if csv is not None:
        write_csv(result, csv)
    if json:
        write_json(result_object(result))
    else:
        for line in result_lines(result):
            write_line(line)
    return 0


def watch(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR", help="A run's folder, a folder of runs, or one checkpoint's folder."
        ),
    ] = Path("results"),
    episodes: Episodes = 5,
    seed: Seed = 0,
    no_render: Annotated[
        bool, typer.Option("--no-render", help="Open no window, and play as fast as it goes.")
    ] = False,
    verbose_: Verbose = False,
) -> int:
    """Watch a run's best weights play without exploring; where there is no display, only the numbers come."""
    from p2prl.cli.output import write_line
    from p2prl.nodes.evaluate import watch_run

    def took(episode: int, value: float, length: int) -> None:
        write_line(f"episode {episode + 1}: return {value:.1f}, {many(length, 'step')}")

    result = watch_run(run, episodes, seed, not no_render, write_line, took)
    for line in result_lines(result):
        write_line(line)
    return 0


def result_object(result: EvalResult) -> dict[str, Any]:
    """The result as JSON."""
    several = len(result.returns) > 1
    return {
        "source": result.source,
        "weights_version": result.version,
        "env": result.env,
        "agent": result.agent,
        "episodes": len(result.returns),
        "mean": result.mean,
        "mean_low": result.low if several else None,
        "mean_high": result.high if several else None,
        "std": result.std,
        "min": min(result.returns),
        "max": max(result.returns),
        "returns": list(result.returns),
        "lengths": list(result.lengths),
        "seeds": list(result.seeds),
        "videos": [str(path) for path in result.videos],
    }


def result_lines(result: EvalResult) -> list[str]:
    """The result for people."""
    from p2prl.cli.output import safe

    mean = f"{result.mean:.1f}"
    if len(result.returns) > 1:  # one alone says nothing of the spread
        mean += f"   (95 % confidence: {result.low:.1f} to {result.high:.1f})"
    spread = f"std {result.std:.1f}, min {min(result.returns):.1f}, max {max(result.returns):.1f}"
    weights = f"weights v{result.version} of {safe(result.source)}"
    lines = [
        f"return  {mean}",
        f"        {spread}",
        f"over    {many(len(result.returns), 'episode')} of {safe(result.env)}, "
        f"{sum(result.lengths) / len(result.lengths):.1f} steps on average",
        f"by      {safe(result.agent)}, {weights}",
    ]
    return lines + [f"video   {path}" for path in result.videos]
