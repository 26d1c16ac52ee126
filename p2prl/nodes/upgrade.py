"""Two p2prl that have no format in common, of weights or of bundles: said at the welcome, with which one to upgrade."""

from __future__ import annotations

import logging
import re

from p2prl import __version__
from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.errors import UpgradeNeeded

log = logging.getLogger("p2prl")

#: Formats that are named in a line for people.
_NAMED = 10


def codec_refusal(name: str, version: str) -> m.Refusal:
    """The host's answer to a node that does not read its weights; its own person is told, too."""
    text = _text(m.WEIGHTS_CODEC, host=__version__, node=line(version, 20))
    log.warning("refused %s: %s", line(name, 60), text)
    return m.Refusal(reason="protocol", text=text, version=__version__)


def check_codec(header: m.WeightsHeader, host_version: str) -> None:
    """Raises UpgradeNeeded for weights that this node does not read."""
    if header.codec != m.WEIGHTS_CODEC:
        raise UpgradeNeeded(_text(line(header.codec, 40), host=line(host_version, 20), node=__version__))


def check_bundle_codecs(welcome: m.Welcome) -> None:
    """Raises UpgradeNeeded if shards do not read what this node's players send; of the other formats they need none."""
    if missing := [codec for codec in m.BUNDLE_CODECS if codec not in welcome.run.codecs]:
        host, node = line(welcome.version, 20), __version__
        names = ", ".join(line(name, 40) for name in welcome.run.codecs[:_NAMED]) or "nothing"
        raise UpgradeNeeded(
            f"the host (p2prl {host}) reads bundles as {names}, but not as {' or '.join(missing)}, "
            f"which this node (p2prl {node}) sends: {_advice(host, node)}"
        )


def _text(codec: str, host: str, node: str) -> str:
    return (
        f"the host (p2prl {host}) sends weights as {codec!r}, which this node (p2prl {node}) cannot read: "
        f"{_advice(host, node)}"
    )


def _advice(host: str, node: str) -> str:
    if _older(node, host):
        return f"upgrade p2prl on this node to {host} or later"
    return f"upgrade p2prl on the host to the version of this node ({node}) or later"


def _older(one: str, other: str) -> bool:
    """By the numbers alone: 0.9.2 is older than 0.10. Of two alike the node is the older one."""
    first, second = ([int(part) for part in re.findall(r"\d+", text)] for text in (one, other))
    return first <= second
