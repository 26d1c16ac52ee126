"""When a run ends by itself: its stop conditions, held against its figures."""

from __future__ import annotations

import logging
from pathlib import Path

from p2prl.config import StopConfig
from p2prl.core import messages as m
from p2prl.core.episodes import WINDOW, EpisodeStats
from p2prl.errors import P2prlError, UsageError
from p2prl.nodes import broker_file, checkpoint
from p2prl.nodes.going_on import flags_again, resume_command
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import Prepared, save_run_file
from p2prl.words import many

log = logging.getLogger("p2prl")


def reached(stop: StopConfig, steps: int, mean: float | None, episodes: int) -> tuple[str, str] | None:
    """The reason why the run ends, and a text about it; None if it goes on. The time is the host's to look at.

    Args:
        steps: environment steps stored.
        mean, episodes: mean return of the least exploring slots, and over how many episodes.
    """
    if stop.mean_return is not None and mean is not None and episodes >= WINDOW and mean >= stop.mean_return:
        return "return", f"mean return {mean:.1f} over the last {WINDOW} episodes"
    if stop.steps and steps >= stop.steps:
        return "steps", many(steps, "step")
    return None


def check_goes_on(options: HostOptions, prepared: Prepared) -> None:
    """Raises UsageError if a resumed run would end as soon as it is up, because of what it has reached already."""
    if not options.resume:
        return
    stop = options.experiment.stop
    found = reached(stop, *_figures(options, prepared))
    if found is not None:
        key, flag = f"stop.steps = {stop.steps}", "--stop-steps N"
        if found[0] == "return":
            key, flag = f"stop.mean_return = {stop.mean_return}", "--stop-return R"
        raise UsageError(
            f"{prepared.folder} has reached what it was to stop at ({key}): {found[1]}; "
            f"to go on name another end, {flag}, or none, --no-stop"
        )
    prepared.file.reached_return = None


def note_reached(prepared: Prepared, mean: float) -> None:
    """The run ends at this mean return. What ends while players leave may lower it: `--resume` is to know."""
    prepared.file.reached_return = mean
    try:
        save_run_file(prepared.folder, prepared.file)
    except OSError as error:
        log.warning("the run's folder does not say why the run ended: %s", error)


def somebody_plays(status: m.StatusReply | None) -> bool:
    """True if a node has not left yet, by the broker's last word; without one nobody knows."""
    return status is None or any(node.players and node.state != "gone" for node in status.nodes)


def coded(text: str, exit_code: int) -> P2prlError:
    """What a run that ends by an error is to raise."""
    error = P2prlError(text)
    error.exit_code = exit_code or 1
    return error


def ended_at_once(run: Path | None, options: HostOptions) -> str:
    """What is said when a second signal leaves no time to end in order.

    Args:
        run: the run's folder; None if there is none yet.
    """
    if run is None or not checkpoint.is_run(run):
        return "p2prl: ended at once"
    return (
        "p2prl: ended at once; sessions and checkpoints are kept, updates after the last checkpoint are lost\n"
        f"to go on:   {resume_command(run, flags_again(options))}"
    )


def _figures(options: HostOptions, prepared: Prepared) -> tuple[int, float | None, int]:
    """Steps, mean return, and over how many episodes, of where the run goes on."""
    if options.back_to is not None:
        meta = checkpoint.load(options.back_to).meta
        return meta.steps, meta.return_mean, meta.return_episodes
    saved, episodes = broker_file.load(prepared.folder), EpisodeStats()
    episodes.load(saved.episodes)
    steps = sum(saved.shard_steps.values())
    then = prepared.file.reached_return
    if then is not None and (episodes.mean is None or then > episodes.mean):
        return steps, then, WINDOW
    return steps, episodes.mean, episodes.mean_count
