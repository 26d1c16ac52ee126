"""The bundles of a workload as a player makes and encodes them: what the limit and the peers are given, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_parts.running import AGENTS, Workload
from p2prl.core.schema import SessionSchema
from p2prl.learn.playing import Bundle
from p2prl.learn.rollout import Rollout
from p2prl.learn.spaces import agent_schema, env_spec
from p2prl.registry import make_agent, make_env_factory, resolve_agent
from p2prl.wire import frames
from p2prl.wire.bundle import encode_bundle

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Played:
    """Some bundles of one player.

    Attributes:
        encoded: of each the header and the payload in one piece, as many bytes as are sent.
    """

    schema: SessionSchema
    bundles: list[Bundle]
    encoded: list[bytes]

    @property
    def size(self) -> float:
        """Bytes of a bundle, on average."""
        return sum(map(len, self.encoded)) / len(self.encoded)

    def sessions(self, count: int) -> list[dict[str, Array]]:
        """Single sessions as peers take them: `obs` `[T, ...]`, `action`, `reward` and `alive` `[T]`."""
        found = [
            {
                "obs": np.ascontiguousarray(obs[:-1, slot]),
                "action": bundle.columns["action"][:, slot].astype(np.int32),
                "reward": bundle.columns["reward"][:, slot].astype(np.float32),
                "alive": (bundle.columns["flags"][:, slot] == 0).astype(np.uint8),
            }
            for bundle, obs in ((bundle, observed(bundle)) for bundle in self.bundles)
            for slot in range(obs.shape[1])
        ]
        return [found[at % len(found)] for at in range(count)]


def observed(bundle: Bundle) -> Array:
    """The observations `[rows, slots, ...]`, also of a bundle that has each picture once."""
    stacks = bundle.stacks.get("obs")
    return bundle.columns["obs"] if stacks is None else stacks.array()


def play(work: Workload, bundles: int, seed: int = 1) -> Played:
    """Play some bundles with the bench's random agent, and encode them."""
    factory = make_env_factory(work.env, dict(work.args))
    env = factory()
    spec = env_spec(env, work.env)
    env.close()
    agent = make_agent(resolve_agent(f"{AGENTS}:Feed"), spec, {"ticks": work.ticks})
    schema = agent_schema(spec, agent, work.ticks)
    rollout = Rollout(factory, spec, schema, agent.actor(), slots=work.slots, ladder=1, rank=0, seed=seed)
    try:
        played = [rollout.collect() for _ in range(bundles)]
    finally:
        rollout.close()
    encoded = []
    for serial, bundle in enumerate(played):
        header, payload = encode_bundle(
            schema,
            bundle.packable,
            slots=work.slots,
            version=0,
            rank=0,
            serial=serial,
            steps=bundle.steps,
            episodes=bundle.episodes,
        )
        encoded.append(frames.encode(header) + payload)
    return Played(schema, played, encoded)
