"""What a person mistypes, or asks too much of a machine: one line that says what to do, and the right exit code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import kit

_MISTYPED = [
    (("host", "--env", "CartPol-v1"), ["CartPol-v1", "did you mean CartPole-v1"]),
    (("host", "--env", "chian"), ["chian", "chain"]),
    (("host", "--agent", "dqm"), ["dqm", "did you mean dqn"]),
    (("host", "--agent", "nowhere.py:Mine"), ["nowhere.py"]),
    (("host", "--set", "agent.learning_rte=1"), ["agent.learning_rte", "agent.learning_rate"]),
    (("host", "--set", "replay.bach=1"), ["replay.bach", "replay.batch"]),
    (("host", "--set", "replay.kind=unifrom"), ["replay.kind", "uniform"]),
    (("host", "--set", "agent.learning_rate=fast"), ["agent.learning_rate", "fast"]),
    (("host", "--set", "replay.batch=0"), ["replay.batch"]),
    (("host", "cartpol"), ["cartpol", "cartpole"]),
    (("join", "127.0.0.1:99999"), ["99999"]),
    (("join", "--agent", "nowhere.py:Mine"), ["nowhere.py"]),
    (("status", "--interface", "nosuch0"), ["no network interface 'nosuch0'", "lo"]),
]


def test_what_is_mistyped_is_named_with_what_is_near_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = ("--results", str(tmp_path / "results"))
        jobs = [
            pool.submit(kit.run, tmp_path, *words, *(results if words[0] == "host" else ()), name=f"c{index}")
            for index, (words, _) in enumerate(_MISTYPED)
        ]
        done = [job.result() for job in jobs]
    for (words, wanted), result in zip(_MISTYPED, done, strict=True):
        assert result.returncode == 2, (words, result.stderr)
        assert result.stdout == ""
        [line] = result.stderr.splitlines()
        assert line.startswith("p2prl: ")
        assert all(part in line for part in wanted), (words, line)
    assert not (tmp_path / "results").exists()


def test_a_buffer_that_does_not_fit_is_refused_with_its_size(tmp_path: Path) -> None:
    base = kit.free_base()
    with kit.host(tmp_path, "chain", "--set", "replay.capacity_bytes=50TB", port=base) as program:
        assert program.wait(20) == 7
    assert "50 TB" in program.stderr
    assert "are free: use --set replay.capacity_bytes=" in program.stderr
    assert not (tmp_path / "results").exists()


def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has a GPU")
    base = kit.free_base()
    with kit.host(tmp_path, "chain", "--gpu", "--players", "0", name=f"g{base}", port=base) as program:
        assert program.wait(30) == 2
    assert "--gpu: torch finds no GPU here" in program.stderr.splitlines()[-1]
    stopped = program.last("stopped")
    assert stopped is None or stopped["reason"] == "error"
