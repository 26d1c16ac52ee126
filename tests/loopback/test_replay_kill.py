"""A shard's process is killed with -9 in the middle of its work: all that it said it had stored is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.replay_kit import CARTPOLE, open_shard, push

ROOT = Path(__file__).resolve().parents[2]

#: Stores bundle after bundle and says so, until it is killed.
VICTIM = """
import sys
from pathlib import Path
from tests.unit.replay_kit import open_shard, push
shard = open_shard(Path(sys.argv[1]), segment_bytes=20_000)
for seq in range(int(sys.argv[2]), 1_000_000):
    assert push(shard, seq).verdict.status == "stored"
    print(seq, flush=True)
"""


def killed_after(folder: Path, first: int, count: int) -> int:
    """Run the victim until it acknowledged `count` bundles, kill it, and return the last that it acknowledged."""
    command = [sys.executable, "-c", VICTIM, str(folder), str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        for _ in range(count):
            last = int(victim.stdout.readline())
        victim.kill()
        rest = victim.stdout.read().split("\n")[:-1]
    return int(rest[-1]) if rest else last


def test_kill_and_kill_again(tmp_path: Path) -> None:
    last = killed_after(tmp_path, 0, 200)
    last = killed_after(tmp_path, last + 2, 100)
    shard = open_shard(tmp_path)
    assert push(shard, last).verdict.status == "duplicate"
    assert all(push(shard, seq).verdict.status == "duplicate" for seq in range(200))
    # One bundle more may have been stored just before each kill, and not been acknowledged.
    acknowledged = last
    assert acknowledged <= shard.stored_total <= acknowledged + 2
    assert shard.inserted_ticks == shard.stored_total * 4 * CARTPOLE.ticks
    assert shard.sessions == min(1000, shard.stored_total * 4)
    shard.close()
