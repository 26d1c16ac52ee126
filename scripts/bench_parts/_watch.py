"""Runs on the host's machine: the broker's picture as JSON lines, each INTERVAL seconds, until it is ended."""

from __future__ import annotations

import json
import sys
import threading
import time

from p2prl.core.messages import StatusReply
from p2prl.errors import NoHostFound
from p2prl.nodes.client import open_client


def main() -> int:
    """The loop."""
    interval_s = float(sys.argv[1])
    pause = threading.Event()
    try:
        with open_client("127.0.0.1", 30.0, "watch") as client:
            while True:
                sys.stdout.write(json.dumps(picture(client.status())) + "\n")
                sys.stdout.flush()
                pause.wait(interval_s)
    except (NoHostFound, BrokenPipeError):
        return 0  # the run ended, or nobody listens any more


def picture(status: StatusReply) -> dict[str, object]:
    """Steps are those that shards stored; a node works from the moment that a bundle of it was stored."""
    return {
        "t": time.monotonic(),
        "steps": status.steps,
        "return_mean": status.return_mean,
        "bundles": {"produced": status.bundles.produced, "stored": status.bundles.stored},
        "nodes": {
            node.name: {"state": node.state, "reason": node.reason, "steps": node.steps}
            for node in status.nodes
        },
    }


if __name__ == "__main__":
    sys.exit(main())
