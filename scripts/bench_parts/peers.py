"""Whom ingest and sampling are held against. Each lives in a Python environment of its own, in the bench's cache.

* Reverb: reverb_driver.py.
* tinyverse's way, a Redis list: the script of the project's baselines, `redis/bench.py`, which packs sessions as
  tinyverse does, by joblib. That can run what it reads, so it has no place in this repository: the folder of baselines
  is `P2PRL_BASELINES`, or `../shared/baselines` beside the checkout. It starts a redis-server of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench_parts.kinds import Unavailable
from bench_parts.pictures import cache_folder

ROOT = Path(__file__).resolve().parents[2]
_SETUP = "scripts/bench --setup"
#: What goes into which environment. Reverb's last wheels are for Python 3.11, and want numpy 1.
_PACKAGES = {
    "reverb": ("dm-reverb[tensorflow]==0.14.0", "numpy<2"),
    "redis": ("redis", "joblib", "lz4", "numpy"),
}
_PYTHONS = {"reverb": ("3.11", "3.10"), "redis": ()}
SESSIONS = 200


class Peer(Protocol):
    """One of them, started."""

    def ingest(self, what: str, producers: int, seconds: float) -> float:
        """Sessions a second that so many producers gave."""

    def sample(self, what: str, seconds: float) -> float:
        """Sessions a second that one consumer took."""


class Peers:
    """Those that are here.

    Attributes:
        there: by name with version; None for one that is absent.
        why: a line about each that is absent.
    """

    def __init__(self, there: Mapping[str, Peer | None], why: Sequence[str]) -> None:
        self.there, self.why = there, why

    def measure(self, ask: Callable[[Peer], float], into: dict[str, list[float]]) -> None:
        """One turn of each."""
        for name, peer in self.there.items():
            found = into.setdefault(name, [])
            if peer is not None:
                found.append(ask(peer))


@contextmanager
def opened(sessions: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Peers]:
    """All that are installed, with these sessions: `cartpole` and `atari`, or one of them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pb-")))
        for what, some in sessions.items():
            np.savez(
                folder / f"{what}.npz", **{name: np.stack([one[name] for one in some]) for name in some[0]}
            )
        if "atari" in sessions:
            np.savez(folder / "frames.npz", x=np.stack([one["obs"] for one in sessions["atari"]]))
        there: dict[str, Peer | None] = {}
        why: list[str] = []
        for name, start in (("Reverb 0.14.0", Reverb), ("tinyverse's way", Tinyverse)):
            try:
                there[name] = stack.enter_context(start(folder))
            except Unavailable as error:
                there[name] = None
                why.append(f"{name}: {error}")
        yield Peers(there, why)


class Reverb:
    """Its driver, for as long as the context is open."""

    def __init__(self, folder: Path) -> None:
        python = _python("reverb")
        if not python.is_file():
            raise Unavailable(f"not set up here: {_SETUP}")
        self._command = [str(python), str(Path(__file__).with_name("reverb_driver.py")), str(folder)]

    def __enter__(self) -> Reverb:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()  # which ends it
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ingest(self, what: str, producers: int, seconds: float) -> float:
        """As in Peer."""
        return self._ask(do="ingest", what=what, producers=producers, seconds=seconds)

    def sample(self, what: str, seconds: float) -> float:
        """As in Peer."""
        return self._ask(do="sample", what=what, batch=BATCHES[what], seconds=seconds)

    def _ask(self, **question: Any) -> float:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Unavailable(f"Reverb's driver ended with {self._process.wait(20)}")
        return float(json.loads(answer)["rate"])


#: Sessions of a batch, of ours and of the peers alike.
BATCHES = {"cartpole": 100, "atari": 32}


class Tinyverse:
    """The baselines' script, anew for each figure."""

    def __init__(self, folder: Path) -> None:
        named = os.environ.get("P2PRL_BASELINES")
        self._script = (Path(named) if named else ROOT.parent / "shared" / "baselines") / "redis" / "bench.py"
        self._python, self._frames = _python("redis"), folder / "frames.npz"
        if not self._script.is_file():
            raise Unavailable(f"there is no {self._script}: P2PRL_BASELINES names the folder of baselines")
        if not self._python.is_file():
            raise Unavailable(f"not set up here: {_SETUP}")
        if shutil.which("redis-server") is None:
            raise Unavailable("there is no redis-server: it comes with the system's packages")

    def __enter__(self) -> Tinyverse:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ingest(self, what: str, producers: int, seconds: float) -> float:
        """As in Peer."""
        return float(self._run("ingest", what, producers, seconds)["ingest_sessions_per_s"])

    def sample(self, what: str, seconds: float) -> float:
        """As in Peer."""
        return float(self._run("sample", what, 1, seconds)["sampled_sessions_per_s"])

    def _run(self, do: str, what: str, producers: int, seconds: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="pb-") as folder:  # where redis might leave something
            done = subprocess.run(
                [str(self._python), str(self._script), do, what, "joblib", str(producers), str(seconds)],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env={**os.environ, "FRAMES": str(self._frames), "PYTHONPATH": ""},
            )
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                return found
        raise Unavailable(f"{self._script} ended with {done.returncode}: {done.stderr[-300:]}")


# --- setting up


def set_up(say: Callable[[str], None]) -> int:
    """Install p2prl[bench] here, and each peer into its own environment; 0 if all of it is there then."""
    say("installing p2prl[bench]")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        "constraints.txt",
        "--editable",
        ".[bench]",
    ]
    missing = subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    for name, packages in _PACKAGES.items():
        if _python(name).is_file():
            continue
        interpreter = _interpreter(name)
        if interpreter is None:
            say(f"{name}: wants Python {' or '.join(_PYTHONS[name])}, which is not here")
            missing = True
            continue
        say(f"{name}: into {_folder(name)}")
        missing |= not _install(name, interpreter, packages)
    if shutil.which("redis-server") is None:
        say("redis-server is missing; on Debian and Ubuntu: apt install redis-server")
        missing = True
    return int(missing)


def _install(name: str, interpreter: str, packages: Sequence[str]) -> bool:
    """Whole, or not at all."""
    folder = _folder(name)
    part = folder.with_name(f".{name}.part")
    shutil.rmtree(part, ignore_errors=True)
    python = part / _python(name).relative_to(folder)
    steps = (
        [interpreter, "-m", "venv", str(part)],
        [str(python), "-m", "pip", "install", "--quiet", *packages],
    )
    if any(subprocess.run(step, check=False).returncode for step in steps):
        return False
    part.replace(folder)  # its python finds its packages wherever it lies
    return True


def _interpreter(name: str) -> str | None:
    wanted = _PYTHONS[name]
    if not wanted or f"{sys.version_info[0]}.{sys.version_info[1]}" in wanted:
        return sys.executable
    return next((found for version in wanted if (found := shutil.which(f"python{version}"))), None)


def _folder(name: str) -> Path:
    return cache_folder() / name


def _python(name: str) -> Path:
    return _folder(name) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
