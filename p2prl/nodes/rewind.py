"""`p2prl host --resume --results RUN/checkpoints/NAME`: the run goes on from that checkpoint, as if it were its last.

What came later is set aside, not deleted: `set-aside/TIME/` in the run's folder gets the later checkpoints, the replay
logs and `broker.json` as they were. Of the replay, sessions that were played with newer weights are left out; older
ones stay. Versions of the weights go on from the highest, because one that was seen must never come again.
"""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from p2prl.errors import P2prlError
from p2prl.net.loop import Loop
from p2prl.nodes import broker_file, checkpoint
from p2prl.nodes.charges import Plan
from p2prl.nodes.child import Child, Exited
from p2prl.nodes.files import fsync_folder
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import Prepared
from p2prl.nodes.process import ChildEvent
from p2prl.replay.rewind import rewrite, survey
from p2prl.words import many

log = logging.getLogger("p2prl")

FOLDER = checkpoint.SET_ASIDE
_NEW = "replay.new"
_LOOK_S = 0.05


@dataclass(frozen=True)
class WentBack:
    """What was done.

    Attributes:
        name: of the checkpoint.
        steps: the run's steps there. A checkpoint knows them as of a moment before; what is kept counts at least.
        checkpoints: how many later ones were set aside.
        bundles: of sessions that newer weights had played, which are left out of the replay.
        folder: where it all is now.
    """

    name: str
    steps: int
    checkpoints: int
    bundles: int
    folder: Path

    def text(self) -> str:
        """One line for people."""
        aside = f"{many(self.checkpoints, 'later checkpoint')}, and the replay with {many(self.bundles, 'bundle')}"
        return (
            f"going on from checkpoint {self.name} at {many(self.steps, 'step')}; {aside} of newer weights in it, "
            f"are set aside in {self.folder}"
        )


def go_back_if_asked(options: HostOptions, prepared: Prepared, base_port: int) -> WentBack | None:
    """What `--resume` with a checkpoint's folder asks for, before anything of the run is started.

    Nothing is changed before the checkpoint is known to be whole, and to fit the agent's settings.

    Raises:
        P2prlError: as `go_back`; UsageError, MissingPackage: as a trainer that cannot start from it.
    """
    if options.back_to is None:
        return None
    _check(Child("trainer", Plan(options, prepared, base_port).check_config(options.back_to)))
    return go_back(
        prepared.folder,
        options.back_to,
        queue=prepared.replay.kind == "queue",
        ticks=prepared.replay.ticks,
        shards=options.experiment.shards,
    )


def _check(child: Child) -> None:
    """Wait for a trainer that only looks. Raises P2prlError with what it says."""
    loop, last_words = Loop(), ChildEvent("failed", "the trainer cannot be started", 1)

    def look() -> None:
        nonlocal last_words
        for news in child.news():
            if isinstance(news, ChildEvent) and news.kind == "failed":
                last_words = news
            elif isinstance(news, Exited):
                loop.stop(news.code)

    loop.every(_LOOK_S, look)
    try:
        code = loop.run()
    finally:
        child.kill()
    if code:
        error = P2prlError(last_words.text)
        error.exit_code = last_words.exit_code or 1
        raise error


def go_back(run: Path, path: Path, *, queue: bool, ticks: int, shards: int) -> WentBack:
    """Make a checkpoint the run's last. Only while no host runs there.

    Args:
        run: the run's folder.
        path: the checkpoint's.
        queue: the replay is one.
        ticks: of a session.

    Raises:
        CorruptCheckpoint: it is damaged; then nothing has changed.
        P2prlError: the disk is full or not writable.
    """
    chosen = checkpoint.load(path)
    aside = _aside(run)
    try:
        bundles, steps = _rewind_replay(run, aside, chosen.meta, queue=queue, ticks=ticks, shards=shards)
        _rewind_broker(run, aside, chosen.meta, steps)
        later = _set_later_aside(run / "checkpoints", aside, chosen)
    except OSError as error:
        raise P2prlError(f"cannot go back to {path.name}: {error.strerror or error}") from error
    return WentBack(path.name, sum(steps.values()), later, bundles, aside)


def _aside(run: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 100):
        folder = run / FOLDER / (stamp if attempt == 1 else f"{stamp}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise P2prlError(f"cannot make {folder}: {error.strerror}") from error
        return folder
    raise P2prlError(f"cannot find a free name in {run / FOLDER}")


def _rewind_replay(
    run: Path, aside: Path, meta: checkpoint.Meta, *, queue: bool, ticks: int, shards: int
) -> tuple[int, dict[int, int]]:
    """The replay without what newer weights played. Returns bundles that are left out, and the steps of each shard."""
    old, new = run / "replay", run / _NEW
    if not old.is_dir():
        return 0, {}
    shutil.rmtree(new, ignore_errors=True)
    found = {index: survey(old / f"shard-{index}", meta.version) for index in range(shards)}
    waiting = ticks * sum(one.slots - one.taken for one in found.values())
    # Older checkpoints do not say how much was inserted; steps are about that.
    inserted = meta.sampled + waiting if queue else meta.inserted or meta.steps
    steps = _shared({index: one.steps for index, one in found.items()}, meta.steps)
    ticks_of = _shared({index: ticks * (one.slots - one.taken) for index, one in found.items()}, inserted)
    for index, one in found.items():
        name = f"shard-{index}"
        rewrite(old / name, new / name, one, meta.version, ticks, steps[index], ticks_of[index])
    old.rename(aside / "replay")
    new.rename(old)
    fsync_folder(run)
    return sum(one.left_out for one in found.values()), steps


def _shared(kept: dict[int, int], total: int) -> dict[int, int]:
    """A total over the shards: what each keeps, and an even part of the rest, which is not there any more."""
    rest = max(0, total - sum(kept.values()))
    each, more = divmod(rest, max(1, len(kept)))
    return {index: own + each + (place < more) for place, (index, own) in enumerate(kept.items())}


def _rewind_broker(run: Path, aside: Path, meta: checkpoint.Meta, steps: dict[int, int]) -> None:
    """The broker's counters as they were; its books of who gave what, its term and its seeds go on."""
    file = run / broker_file.NAME
    if file.is_file():
        shutil.copy2(file, aside / broker_file.NAME)
    saved = broker_file.load(run)
    saved.shard_steps = dict(steps)
    saved.updates, saved.updates_skipped, saved.sessions_lost = meta.updates, meta.skipped, meta.lost
    saved.episodes = meta.returns or {"count": [float(meta.episodes)]}
    last = saved.evaluation
    if last is not None and last.version > meta.version:
        saved.evaluation = None
    broker_file.save(run, saved, durable=True)


def _set_later_aside(folder: Path, aside: Path, chosen: checkpoint.Checkpoint) -> int:
    """Move later checkpoints away; the chosen one gets a name by which it is the last. Returns how many went."""
    meta = chosen.meta
    name = f"{meta.updates:010d}-v{meta.version}"
    places = [path for path in (*checkpoint.candidates(folder), folder / checkpoint.KEPT) if path.is_dir()]
    later = [path for path in places if path.name != name and _is_later(path, meta)]
    if chosen.path.name != name and not (folder / name).exists():
        part = folder / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(chosen.path, part)
        part.rename(folder / name)
    target = aside / "checkpoints"
    target.mkdir()
    for path in later:
        path.rename(target / path.name.lstrip("."))
    fsync_folder(folder)
    return len(later)


def _is_later(path: Path, meta: checkpoint.Meta) -> bool:
    """True also for one that cannot be read: it would come in the way by its name."""
    try:
        raw = (path / "meta.json").read_bytes()
        other = msgspec.json.decode(raw, type=checkpoint.Meta)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return True
    return (other.updates, other.version) > (meta.updates, meta.version)
