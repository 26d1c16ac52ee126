"""The agent in docs/write-an-agent.md, trained as the page says: as a file, on the host and on a joiner."""

from __future__ import annotations

from pathlib import Path

from tests import docs_kit, kit

#: A chain whose best return is 1 - 6 x 0.1 = 0.4. Who walks at random gets less than -1.
_CHAIN = ("--env", "chain", "--set", "env.args.length=8", "--set", "env.args.step_reward=-0.1")
_BEST = 0.4
_SLOTS = ("--set", "env.args.max_steps=40")


def test_it_learns_from_a_host_and_from_a_joiner_that_has_its_own_copy(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    ours, theirs = (docs_kit.tabular_agent(tmp_path / place) for place in ("here", "there"))
    settings = (
        *_CHAIN,
        *_SLOTS,
        "--agent",
        f"{ours}:Tabular",
        "--players",
        "0",
        "--stop-return",
        str(_BEST - 0.05),
    )
    base = kit.free_base()
    with kit.host(tmp_path, *settings, "--stop-time", "60", port=base) as host:
        host.wait_for("progress")
        with kit.join(tmp_path, "--agent", f"{theirs}:Tabular", target=f"127.0.0.1:{base}") as joiner:
            joiner.wait_for("joined")
            assert host.wait(90) == 0
            assert joiner.wait() == 0
    stopped = host.last("stopped")
    assert stopped is not None
    # The mean of 100 episodes of rung 0, which acts at random once in a hundred ticks.
    assert stopped["reason"] == "return", stopped
    assert stopped["return_mean"] >= _BEST - 0.05
    assert stopped["return_mean"] > stopped["return_mean_all"]
    assert kit.balanced(stopped["bundles"])
