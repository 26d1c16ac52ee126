"""What a child says is kept while nobody asks, within bounds, and no reader is ever in another's way."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator

import msgspec
import pytest

from p2prl.nodes import child as module
from p2prl.nodes.child import KEEP_MEMORY, ONE_THREAD, Child, Exited, LogLine
from p2prl.nodes.process import ChildEvent
from tests.conftest import wait_until

#: Says far more than a pipe holds (64 kB), on both, and ends.
FLOOD = """
import json, sys, threading
def lines():
    for number in range(20000):
        print("INFO line", number, file=sys.stderr)
thread = threading.Thread(target=lines)
thread.start()
for number in range(20000):
    print("printed", number)
print(json.dumps({"kind": "failed", "text": "the cause"}))
thread.join()
"""


class Nothing(msgspec.Struct):
    """A config."""


def running(script: str, monkeypatch: pytest.MonkeyPatch, env: dict[str, str] | None = None) -> Child:
    """A child that is this script instead of one of p2prl's processes."""
    real = module.subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr(
            module.subprocess, "Popen", lambda command, **more: real([sys.executable, "-c", script], **more)
        )
        return Child("script", Nothing(), env)


@pytest.fixture
def flooding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    child = running(FLOOD, monkeypatch)
    yield child
    child.kill()


def test_a_flood_blocks_nobody_and_takes_no_event_with_it(flooding: Child) -> None:
    wait_until(
        lambda: not flooding.alive, 60.0
    )  # without a call of news(): it would hang if its pipe was full
    news = flooding.news()
    lines = [item.text for item in news if isinstance(item, LogLine)]
    assert {"line 19999", "printed 19999"} & set(lines[-1:])
    assert len(lines) < 3000
    assert [item.text for item in news if isinstance(item, ChildEvent)] == ["the cause"]
    assert news[-1] == Exited(0)
    assert flooding.news() == []


def test_news_taken_during_a_flood_lose_no_event_and_no_reader(flooding: Child) -> None:
    news: list[object] = []

    def ended() -> bool:
        news.extend(flooding.news())
        return isinstance(news[-1], Exited) if news else False

    wait_until(ended, 60.0)
    assert [item.text for item in news if isinstance(item, ChildEvent)] == ["the cause"]
    lines = [item.text for item in news if isinstance(item, LogLine)]
    assert lines[-1] in ("line 19999", "printed 19999")  # both readers lived to the end of the last flood


#: Computes in itself, and in a process that it spawns, as environments may.
COMPUTING = """
import subprocess, sys
one = '''
import numpy, psutil
square = numpy.ones((1500, 1500), numpy.float32)
square @ square
print("threads:", psutil.Process().num_threads(), flush=True)
'''
exec(one)
subprocess.run([sys.executable, "-c", one], check=True)
import torch
print("torch:", torch.get_num_threads(), flush=True)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or os.cpu_count() == 1,
    reason="elsewhere a process has other threads too, and one core has no use for two",
)
def test_a_player_computes_with_one_thread_whatever_its_parent_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ONE_THREAD:
        monkeypatch.setenv(name, "2")

    def said(env: dict[str, str] | None) -> list[str]:
        child = running(COMPUTING, monkeypatch, env)
        wait_until(lambda: not child.alive, 60.0)
        news = child.news()
        child.kill()
        return [item.text for item in news if isinstance(item, LogLine)]

    assert said(ONE_THREAD) == ["threads: 1", "threads: 1", "torch: 1"]
    assert said(None) == ["threads: 2", "threads: 2", "torch: 2"], "else this test shows nothing"


#: Pieces of 8 MB, each freed before the next, and at the end how many of the system's pages they took anew.
TAKING = """
import resource
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(8_000_000)
    bytearray(7_000_000)
print("pages:", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, flush=True)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others do not read these settings")
def test_a_child_keeps_the_memory_that_it_frees_unless_the_user_wants_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pages() -> int:
        child = running(TAKING, monkeypatch, None)
        wait_until(lambda: not child.alive, 60.0)
        news = child.news()
        child.kill()
        return int(next(item.text for item in news if isinstance(item, LogLine)).partition(": ")[2])

    for name in KEEP_MEMORY:
        monkeypatch.delenv(name, raising=False)
    kept = pages()
    for name in KEEP_MEMORY:
        monkeypatch.setenv(name, "65536")
    assert kept < 5000 < pages()
