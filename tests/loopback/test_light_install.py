"""What a joiner installs: light, without torch, and enough to host `cem` and `es`, and to join `dqn`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kit

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_BYTES = 120_000_000
#: What a venv has before anything is installed, and a joiner does not get from us.
_NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence")


@pytest.fixture(scope="module")
def light_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh venv with `pip install p2prl` and nothing else; its interpreter."""
    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    wheel = folder / "wheel"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # A wheel first: pip leaves no build folder in the checkout then.
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(wheel), str(_ROOT)], check=True, capture_output=True
    )
    [built] = wheel.glob("p2prl-*.whl")
    constraints = str(_ROOT / "constraints.txt")
    subprocess.run([*pip, "install", "-c", constraints, str(built)], check=True, capture_output=True)
    return python


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip())


def test_it_is_light_and_has_no_torch(light_python: Path) -> None:
    site = _site_packages(light_python)
    ours = [path for path in site.iterdir() if not path.name.startswith(_NOT_OURS)]
    size = sum(
        file.stat().st_size
        for path in ours
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.is_file()
    )
    assert size < _LIMIT_BYTES, f"{size / 1e6:.1f} MB"
    names = {path.name for path in ours}
    assert "p2prl" in names
    assert not names & {"torch", "tensorboard", "pygame", "imageio_ffmpeg"}


@pytest.mark.parametrize("preset", ["cartpole-cem", "cartpole-es"])
def test_numpy_agents_host_and_join_without_torch(light_python: Path, tmp_path: Path, preset: str) -> None:
    python = str(light_python)
    arguments = (preset, "--players", "0", "--stop-steps", "20000")
    with (
        kit.host(tmp_path, *arguments, python=python) as host,
        kit.join(tmp_path, python=python) as joiner,
    ):
        assert host.wait(60) == 0
        assert joiner.wait() == 0
        stopped = host.last("stopped")
    assert stopped is not None
    assert stopped["updates"] > 0
    assert kit.balanced(stopped["bundles"])
    assert "tensorboard is not installed" in host.stderr


def test_dqn_joins_without_torch(light_python: Path, tmp_path: Path) -> None:
    with (
        kit.host(tmp_path, "chain", "--players", "0", "--stop-steps", "10000") as host,
        kit.join(tmp_path, python=str(light_python)) as joiner,
    ):
        assert host.wait(60) == 0
        assert joiner.wait() == 0
        stopped = host.last("stopped")
    assert stopped is not None
    assert stopped["updates"] > 0


def test_dqn_does_not_host_without_torch_and_says_what_to_install(light_python: Path, tmp_path: Path) -> None:
    with kit.host(tmp_path, "chain", "--players", "0", python=str(light_python)) as host:
        assert host.wait(30) == 1
    words, _, command = host.stderr.partition("torch: ")
    assert words == "p2prl: training dqn needs "
    assert command == f'{light_python} -m pip install "p2prl[train]"'
    # It knows p2prl, which is on no index, and goes on to what that wants.
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--no-index"], capture_output=True, text=True, check=False
    )
    assert "No matching distribution found for p2prl" not in done.stderr
    assert "from p2prl[train]" in done.stderr
    assert not (tmp_path / "results").exists(), "before anything is started or made"


@pytest.mark.parametrize(
    ("preset", "extra"),
    [("lunarlander", "box2d"), ("minigrid-memory", "minigrid"), ("mobile-small", "mobile")],
)
def test_a_host_without_an_environments_package_says_which_to_install(
    light_python: Path, tmp_path: Path, preset: str, extra: str
) -> None:
    with kit.host(tmp_path, preset, "--players", "0", python=str(light_python)) as host:
        assert host.wait(30) == 1
    assert host.stderr.count(f'pip install "p2prl[{extra}]"') == 1
    assert host.last("started") is None
    assert not (tmp_path / "results").exists()


def test_a_joiner_without_an_environments_package_says_which_to_install(
    light_python: Path, tmp_path: Path
) -> None:
    with (
        kit.host(tmp_path, "mobile-small", "--players", "0") as host,
        kit.join(tmp_path, python=str(light_python)) as joiner,
    ):
        assert joiner.wait(30) == 1
        assert (
            f'mobile needs a package that is missing here: {light_python} -m pip install "p2prl[mobile]"'
            in joiner.stderr
        )
        assert host.end(number=signal.SIGINT) == 0
