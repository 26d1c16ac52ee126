"""nodes/rings.py, and who is told of them: nodes/charges.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from p2prl.core.schema import Column, SessionSchema
from p2prl.nodes.charges import Plan
from p2prl.nodes.options import HostOptions
from p2prl.nodes.prepare import prepare
from p2prl.nodes.rings import close_rings, open_rings
from p2prl.nodes.trainer_config import TrainerConfig
from p2prl.nodes.wiring import ShardConfig
from p2prl.settings import find_experiment, overlay
from tests.unit.replay_kit import CARTPOLE

only_linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a name here")


def planned(tmp_path: Path, *settings: str) -> tuple[Plan, list[int], list[int], TrainerConfig]:
    """The plan of a host of dqn; each shard's ring; what the trainer gets; its config."""
    experiment = overlay(find_experiment("cartpole"), ["shards=3", *settings])
    options = HostOptions(experiment, "alone", players=0, results=tmp_path / "results")
    plan = Plan(options, prepare(experiment, options.results, False), 22300)
    charges = plan.charges()
    rings: list[int] = []
    for charge in charges:
        config = charge.make_config()
        if isinstance(config, ShardConfig):
            assert list(charge.descriptors) == ([config.ring] if config.ring >= 0 else [])
            rings.append(config.ring)
        elif isinstance(config, TrainerConfig):
            trainer, given = config, list(charge.descriptors)
        else:
            assert not charge.descriptors
    return plan, rings, given, trainer


@only_linux
@pytest.mark.usefixtures("home")
def test_each_shard_shares_its_own_memory_with_the_trainer(tmp_path: Path) -> None:
    plan, rings, given, trainer = planned(tmp_path)
    assert len(set(rings)) == 3
    assert rings == given == trainer.rings
    assert trainer.shard_bytes * 3 >= trainer.replay.capacity_bytes
    for ring in rings:
        assert not os.get_inheritable(ring), "any child would have it"
        assert os.fstat(ring).st_nlink == 0
    plan.close()
    for ring in rings:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(ring)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("why", ["no memfd_create", "forbidden", "prioritised"])
def test_elsewhere_samples_go_through_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def forbidden(name: str) -> int:
        raise PermissionError(name)

    if why == "no memfd_create":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif why == "forbidden":
        monkeypatch.setattr(os, "memfd_create", forbidden, raising=False)
    settings = ["replay.kind=prioritised"] if why == "prioritised" else []
    plan, rings, given, trainer = planned(tmp_path, *settings)
    assert rings == [-1, -1, -1]
    assert given == trainer.rings == []
    plan.close()


def test_there_are_none_for_queues_and_pictures() -> None:
    frames = Column("obs", "uint8", (4, 84, 84), extra_row=True)
    assert open_rings(CARTPOLE, "queue", 2) == []
    assert open_rings(SessionSchema(4, (frames, *CARTPOLE.columns[1:])), "uniform", 2) == []
    made = open_rings(CARTPOLE, "uniform", 2)
    assert len(made) == (2 if sys.platform == "linux" else 0)
    close_rings(made)
    assert made == []
