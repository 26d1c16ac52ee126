"""What every test gets: places of its own, a way to wait, and a check that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import psutil
import pytest

if TYPE_CHECKING:
    from p2prl.net.loop import Loop

# Before numpy and torch are imported: on few cores that others use too, their threads only wait for each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A shell without job control starts what is in the background with SIGINT ignored, and all their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that takes long says that others keep this machine busy, not that something is wrong.
hypothesis.settings.register_profile("p2prl", deadline=None)
hypothesis.settings.load_profile("p2prl")

_ROOT = Path(__file__).resolve().parent.parent
_TICK_S = 0.02
#: How long a thread or child that was told to end may still be seen.
_GRACE_S = 5.0


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """Some tests run what a trainer or the bench runs, in this very thread: it takes denormals for 0 from then on."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


def wait_until(condition: Callable[[], object], timeout: float = 10.0, what: str = "") -> object:
    """Poll `condition` until it is true, and return what it returned.

    Raises:
        AssertionError: it was not true within `timeout` seconds; `what` says what was waited for.
    """
    deadline = time.monotonic() + timeout
    tick = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what or condition} was not so within {timeout} s; last: {value!r}")
        tick.wait(_TICK_S)


def run_until(
    loop: Loop,
    condition: Callable[[], object],
    timeout: float = 10.0,
    what: Callable[[], object] | None = None,
) -> None:
    """Run `loop` until `condition` was true once.

    Raises:
        AssertionError: it was not true within `timeout` seconds; `what` says how things were then.
    """
    found = False

    def look() -> bool:
        nonlocal found
        found = found or bool(condition())
        return found

    assert loop.run_on(look, timeout), f"not within {timeout} s; {what() if what else condition}"


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., object]:
    """The function `wait_until`, for tests that do not import it."""
    return wait_until


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh state folder that P2PRL_HOME points to, for this process and its children."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("P2PRL_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def _own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder and a temporary folder of our own for the whole session.

    A test that forgot `home` does not touch the state of whoever runs the tests, and what a test or its
    children leave in the temporary folder is seen. Its path is short: ipc sockets have room for 100 letters.
    """
    state = tmp_path_factory.mktemp(
        "state"
    )  # before TMPDIR changes: pytest keeps its folders where they always are
    scratch = Path(tempfile.mkdtemp(prefix="pt-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("P2PRL_HOME", str(state))
        # torch makes this folder below the temporary one whenever an optimiser is made.
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(state / "torch"))
        for name in ("TMPDIR", "TEMP", "TMP"):
            patch.setenv(name, str(scratch))
        patch.setattr(tempfile, "tempdir", str(scratch))
        yield scratch
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest, _own_places: Path) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process, an open port, or a file beside its tmp_path."""
    places = (_ROOT, _own_places)
    threads, files, ports = set(threading.enumerate()), _files(places), _open_ports()
    children = {child.pid for child in _children()}
    yield
    deadline = time.monotonic() + _GRACE_S
    tick = threading.Event()
    while left := _leftovers(threads, children, ports, _files(places) - files):
        if time.monotonic() >= deadline:
            pytest.fail(f"{request.node.nodeid} left behind: {'; '.join(left)}")
        tick.wait(_TICK_S)


def _leftovers(
    threads: set[threading.Thread], children: set[int], ports: set[tuple[str, int]], files: set[Path]
) -> list[str]:
    left = [f"thread {t.name}" for t in threading.enumerate() if t not in threads and t.is_alive()]
    left += [f"process {_command(child)}" for child in _children() if child.pid not in children]
    left += [f"open port {address}:{port}" for address, port in _open_ports() - ports]
    left += [f"file {path}" for path in files]
    return left


def _children() -> list[psutil.Process]:
    """Children and theirs, without the tracker that multiprocessing keeps until this process ends."""
    if not _has_children():
        return []
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "resource_tracker" not in _command(child)]


def _has_children() -> bool:
    """False if there are surely none: to ask is a thousand times cheaper than to look at all processes there are."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _command(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"{process.pid} (ended, but nobody waited for it)"
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"{process.pid} (gone)"


def _open_ports() -> set[tuple[str, int]]:
    """Where this process listens, or has a UDP socket bound."""
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.Process().net_connections(kind="inet")
        if connection.laddr and connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    }


def _files(places: Sequence[Path]) -> set[Path]:
    """The tops of these folders; dot names are caches of the tools."""
    return {path for place in places for path in place.iterdir() if not path.name.startswith(".")}
