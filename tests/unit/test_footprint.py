"""What a volunteer's processes bring into memory: measured in a process of its own, for imports never go away."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A joiner's member holds neither arrays nor environments; a player needs no way onto the network but its member's.
FORBIDDEN = {
    "p2prl.nodes.join": ("numpy", "gymnasium", "torch", "lz4", "zeroconf", "asyncio", "spake2", "rich"),
    "p2prl.cli.join": ("numpy", "gymnasium", "torch", "lz4", "zeroconf", "asyncio", "rich"),
    "p2prl.cli.piped": ("numpy", "gymnasium", "torch", "lz4", "zeroconf", "asyncio", "rich"),
    "p2prl.cli.reporters": ("numpy", "gymnasium", "torch", "lz4", "zeroconf", "asyncio"),
    "p2prl.nodes.broker": ("numpy", "gymnasium", "torch", "lz4", "zeroconf"),
    "p2prl.nodes.player": (
        *("torch", "zeroconf", "typer", "rich", "asyncio", "psutil", "filelock", "platformdirs"),
        "p2prl.core.membership",
    ),
    "p2prl.nodes.shard": ("gymnasium", "torch", "zeroconf", "typer", "rich"),
}


@pytest.mark.parametrize("module", FORBIDDEN)
def test_a_process_does_not_bring_in_what_it_never_uses(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    brought = set(done.stdout.split())
    assert module in brought
    assert brought.isdisjoint(FORBIDDEN[module])
