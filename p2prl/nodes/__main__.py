"""`python -m p2prl.nodes ROLE`: one process of a node. Started by a parent, never by hand; see nodes/process.py."""

from __future__ import annotations

import importlib
import os
import sys

ROLES = ("broker", "shard", "trainer", "member", "player")


def main() -> int:
    """Run the role named on the command line."""
    if len(sys.argv) != 2 or sys.argv[1] not in ROLES:
        print(f"usage: python -m p2prl.nodes {{{'|'.join(ROLES)}}} < config", file=sys.stderr)  # noqa: T201
        return 2
    from p2prl.nodes.process import configure_logging

    configure_logging(verbose=bool(os.environ.get("P2PRL_VERBOSE")))
    role = importlib.import_module(f"p2prl.nodes.{sys.argv[1]}")
    return int(role.child_main())


if __name__ == "__main__":
    sys.exit(main())
