"""nodes/rings.py, and who is told of them: nodes/charges.py."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.core.schema import Column, SessionSchema
from p2prl.nodes.charges import Plan
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import prepare
from p2prl.nodes.rings import Ring, close_rings, open_rings
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import ShardConfig
from p2prl.replay.shared import SharedRing, ring_bytes
from p2prl.settings import find_experiment, overlay
from tests.unit.replay_kit import CARTPOLE

only_linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a name here")


def planned(tmp_path: Path, *settings: str) -> tuple[Plan, list[int], list[int], TrainerConfig]:
    """The plan of a host of dqn; each shard's ring; what the trainer gets; its config."""
    experiment = overlay(find_experiment("cartpole"), ["shards=3", *settings])
    options = HostOptions(experiment, "alone", players=0, results=tmp_path / "results")
    plan = Plan(options, prepare(experiment, options.results, False), 22300)
    charges = plan.charges()
    rings: list[int] = []
    for charge in charges:
        config = charge.make_config()
        if isinstance(config, ShardConfig):
            assert list(charge.descriptors) == ([config.ring] if config.ring >= 0 else [])
            rings.append(config.ring)
        elif isinstance(config, TrainerConfig):
            trainer, given = config, list(charge.descriptors)
        else:
            assert not charge.descriptors
    return plan, rings, given, trainer


#: Of a ring of 64 sessions.
BYTES = 64 * CARTPOLE.session_bytes()


def open_files() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def ring() -> Iterator[Ring]:
    """One of 64 sessions."""
    rings = open_rings(CARTPOLE, "uniform", 1, BYTES)
    yield rings[0]
    close_rings(rings)


@only_linux
@pytest.mark.usefixtures("home")
def test_each_shard_shares_its_own_memory_with_the_trainer(tmp_path: Path) -> None:
    plan, rings, given, trainer = planned(tmp_path)
    assert len({*rings, *given}) == 6
    assert given == trainer.rings
    assert [os.fstat(ring).st_ino for ring in rings] == [os.fstat(ring).st_ino for ring in given]
    assert trainer.shard_bytes * 3 >= trainer.replay.capacity_bytes
    assert plan.check_config(tmp_path).rings == [], "that process gets none"
    for ring in (*rings, *given):
        assert not os.get_inheritable(ring), "any child would have it"
        assert os.fstat(ring).st_nlink == 0
    plan.close()
    for ring in (*rings, *given):
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(ring)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("why", ["no memfd_create", "forbidden", "no /proc", "prioritised"])
def test_elsewhere_samples_go_through_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    opened, create = os.open, getattr(os, "memfd_create", None)

    def forbidden(name: str, flags: int) -> int:
        if name == "p2prl-ring-0":
            return create(name, flags)
        raise PermissionError(errno.EPERM, name)

    if why == "no memfd_create":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif why == "forbidden":
        monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    elif why == "no /proc":
        monkeypatch.setattr(
            os, "open", lambda path, *how: opened("/none" if "/proc/" in str(path) else path, *how)
        )
    settings = ["replay.kind=prioritised"] if why == "prioritised" else []
    gc.collect()  # what other tests left is not to be closed meanwhile
    before = open_files() if sys.platform == "linux" else 0
    plan, rings, given, trainer = planned(tmp_path, *settings)
    assert not before or open_files() == before, "a descriptor was left open"
    assert rings == [-1, -1, -1]
    assert given == trainer.rings == []
    plan.close()


def test_there_are_none_for_queues_and_pictures() -> None:
    frames = Column("obs", "uint8", (4, 84, 84), extra_row=True)
    assert open_rings(CARTPOLE, "queue", 2, BYTES) == []
    assert open_rings(SessionSchema(4, (frames, *CARTPOLE.columns[1:])), "uniform", 2, BYTES) == []
    made = open_rings(CARTPOLE, "uniform", 2, BYTES)
    assert len(made) == (2 if sys.platform == "linux" else 0)
    close_rings(made)
    assert made == []


@only_linux
def test_nobody_changes_its_size_and_the_trainers_descriptor_does_not_write(ring: Ring) -> None:
    size = ring_bytes(CARTPOLE, 64)
    assert os.fstat(ring.writes).st_size == os.fstat(ring.reads).st_size == size
    for descriptor in (ring.writes, ring.reads):
        for other in (0, size - 1, size + 1):
            with pytest.raises(OSError, match=r".") as caught:
                os.ftruncate(descriptor, other)
            assert caught.value.errno in (errno.EPERM, errno.EINVAL, errno.EBADF)
    with pytest.raises(OSError, match=r".") as caught:
        os.pwrite(ring.reads, b"x", 0)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(PermissionError):
        mmap.mmap(ring.reads, size, access=mmap.ACCESS_WRITE)
    # Each start of a shard takes it as it is.
    for _ in range(2):
        written = SharedRing(CARTPOLE, 64, ring.writes, writes=True)
        written.stamps[0] = 7
    assert SharedRing(CARTPOLE, 64, ring.reads).stamps[0] == 7


_PASSES_ON = """
import subprocess, sys
from p2prl.nodes.rings import keep_to_itself
ring, keeps = int(sys.argv[1]), sys.argv[2] == "keeps"
if keeps:
    keep_to_itself([ring])
look = "import os, sys; os.fstat(int(sys.argv[1]))"
sys.exit(subprocess.run([sys.executable, "-c", look, str(ring)], close_fds=False, stderr=subprocess.DEVNULL).returncode)
"""


@only_linux
@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_child_starts_does_not_get_it(ring: Ring, keeps: bool) -> None:
    argv = [sys.executable, "-c", _PASSES_ON, str(ring.reads), "keeps" if keeps else "does not"]
    assert subprocess.run(argv, pass_fds=[ring.reads], check=False).returncode == (1 if keeps else 0)


_CANNOT_MAP = """
import resource, sys
from p2prl.learn.contracts import ReplaySpec
from p2prl.learn.gathering import Gatherer
from p2prl.errors import LimitsForbid
from tests.unit.replay_kit import CARTPOLE
spec = ReplaySpec(ticks=CARTPOLE.ticks, batch=8, capacity_bytes=10**6, min_ticks=0)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
try:
    Gatherer(CARTPOLE, spec, [int(sys.argv[1])], int(sys.argv[2]))
except LimitsForbid as error:
    sys.exit(str(error))
"""


@only_linux
def test_a_trainer_without_address_space_for_it_says_what_to_do() -> None:
    places = 1_000_000
    rings = open_rings(CARTPOLE, "uniform", 1, places * CARTPOLE.session_bytes())
    argv = [sys.executable, "-c", _CANNOT_MAP, str(rings[0].reads), str(places)]
    done = subprocess.run(argv, pass_fds=[rings[0].reads], check=False, capture_output=True, text=True)
    close_rings(rings)
    assert done.returncode == 1
    assert done.stderr.startswith("the trainer cannot map the replay's ")
    assert "set replay.capacity_bytes lower" in done.stderr
