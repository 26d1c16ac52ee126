"""A host that was joined before is found again without mDNS, under whichever of its runs."""

from __future__ import annotations

from pathlib import Path

from p2prl.net.addresses import KnownHost, KnownHosts
from p2prl.net.keys import load_or_create
from tests import kit


def remember(home: Path, base: int, *run_ids: str, key: str = "k" * 40) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    memory = KnownHosts(home)
    for age, run_id in enumerate(run_ids):
        memory.remember(
            KnownHost(
                name="classroom",
                run_id=run_id,
                server_key=key,
                addresses=("127.0.0.1",),
                base_port=base,
                seen_at=float(age + 1),
            )
        )


def test_two_remembered_runs_of_one_host_are_one_host(tmp_path: Path) -> None:
    """The name is enough, although nobody answers yet: it waits, and says where it dials."""
    base = kit.free_base()
    remember(tmp_path / "home-joiner", base, "first", "second")
    with kit.join(tmp_path, "--interface", "lo", "--wait", "6", target="classroom") as joiner:
        line = joiner.wait_for_line("no host called classroom")
        assert f"127.0.0.1 port {base + 1}" in line
        assert joiner.wait(20) == 3


def test_the_remembered_host_is_joined_when_it_comes_up(tmp_path: Path) -> None:
    base = kit.free_base()
    key = load_or_create(tmp_path / "home-renamed" / "node.key").public
    remember(tmp_path / "home-joiner", base, "first", "second", key=key)
    with kit.join(tmp_path, "--interface", "lo", target="classroom") as joiner:
        joiner.wait_for_line("no host called classroom")
        with kit.host(tmp_path, "chain", "--players", "0", port=base, name="renamed") as host:
            assert joiner.wait_for("joined")["host"] == "renamed"
            assert host.end(20.0) == 0
        assert joiner.wait(20) == 0
