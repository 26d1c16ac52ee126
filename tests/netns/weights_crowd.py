"""The two processes of crowd_kit.py: `host` publishes weights, `members` load them. Both print JSON lines.

The broker, the publisher and the members are the product's. A member's players are stood in for by one decoder each,
so that forty of them fit into this machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from p2prl.core import messages as m
from p2prl.net.addresses import endpoint
from p2prl.net.keys import new_key_pair
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network
from p2prl.nodes.broker import Broker
from p2prl.nodes.member import Member
from p2prl.nodes.prepare import prepare
from p2prl.nodes.publisher import Publisher
from p2prl.nodes.wiring import BrokerConfig, MemberConfig, Staff, publish_port
from p2prl.settings import find_experiment
from p2prl.wire.blocks import Array
from p2prl.wire.weights import WeightsDecoder
from tests.loopback.test_member_alone import Said

#: Shapes of a network of 270 kB, and how far a publication's weights are from those before.
SHAPES = {"a": (4, 256), "a/bias": (256,), "b": (256, 256), "b/bias": (256,), "c": (256, 2), "c/bias": (2,)}
STEP = 3e-4


def tell(**event: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Trained:
    """A network whose weights move with each look."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._weights = {name: self._rng.normal(0, 0.05, shape) for name, shape in SHAPES.items()}

    def weights(self) -> dict[str, Array]:
        """One step further."""
        for values in self._weights.values():
            values += self._rng.normal(0, STEP, values.shape)
        return {name: values.astype(np.float32) for name, values in self._weights.items()}


def host(folder: Path, base: int, each_s: float, times: int) -> None:
    """Publish `times` times; tell when, and how many bytes each member gets."""
    loop, network = Loop(), Network()
    keys, trainer = new_key_pair(), new_key_pair()
    prepared = prepare(find_experiment("chain"), folder / "results", False)
    config = BrokerConfig(
        run=prepared.run,
        run_name="run",
        host_name="here",
        keys=keys,
        staff=Staff(new_key_pair().public, trainer.public, new_key_pair().public, new_key_pair().public),
        base_port=base,
        bind=["*"],
        shards=0,
        folder=str(prepared.folder),
        state=str(folder / "state"),
        open=True,
    )
    broker = Broker(config, loop)
    trained, began = Trained(), 0.0

    def gone(header: m.WeightsHeader | None) -> None:
        if header is not None:
            tell(version=header.version, size_bytes=header.size_bytes, whole=header.whole, t=began)
        if publisher.version == times - 1:
            timer.cancel()

    def publish() -> None:
        nonlocal began
        weights, began = trained.weights(), loop.now()
        publisher.publish(weights, config.run.run_id, 0, False)

    address = endpoint("127.0.0.1", publish_port(base))
    publisher = Publisher(loop, network, address, trainer, keys.public, True, gone)
    timer = loop.every(each_s, publish)
    tell(key=keys.public, members=len(broker.members.peers))
    loop.run()


def members(folder: Path, address: str, base: int, key: str, count: int) -> None:
    """Join with `count` members; tell when the last of them has loaded a version."""
    loop = Loop()

    def join(number: int) -> Member:
        config = MemberConfig(
            host=address,
            base_port=base,
            server_key=key,
            keys=new_key_pair(),
            name=f"n{number}",
            players=0,
            spool_bytes=0,
            spool_folder=str(folder / str(number)),
            keep_free_bytes=0,
            own=True,
        )
        return Member(config, loop, Said())

    crowd = [(join(number), WeightsDecoder()) for number in range(count)]
    loaded, keyframes, told = [-1] * count, [-1] * count, -1

    def load() -> bool:
        nonlocal told
        for number, (member, decoder) in enumerate(crowd):
            stock = member.players.stock
            if stock.header is not None and stock.header.version > loaded[number]:
                decoder.read(stock.parts_for(keyframes[number])[1])
                loaded[number], keyframes[number] = stock.header.version, stock.keyframe
        if min(loaded) > told:
            told = min(loaded)
            tell(loaded=told, t=loop.now())
        return False

    loop.when_idle(load)
    loop.run()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        if sys.argv[1] == "host":
            host(Path(scratch), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
        else:
            members(Path(scratch), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
