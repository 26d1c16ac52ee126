"""Players of an on-policy agent wait for room before they play: what they play is of the newest weights."""

from __future__ import annotations

from pathlib import Path

from tests import kit


def test_sessions_are_about_one_version_old(tmp_path: Path) -> None:
    """One player, a queue of one batch, an update per batch. Three bundles ahead would be a lag of three and more.

    `a2c` refuses what is older than one version; that hardly anything is shows how seldom it happens.
    """
    with kit.host(tmp_path, "a2c", "--players", "1", "--stop-steps", "20000") as host:
        assert host.wait(120) == 0
        stopped = host.last("stopped")
    assert stopped is not None
    assert stopped["lag_mean"] <= 1.0
    books = stopped["bundles"]
    assert books["stale"] <= 0.2 * books["produced"]
    assert kit.balanced(books)
