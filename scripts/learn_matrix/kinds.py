"""What a row of the matrix is made of: who learns, until when, and what the result is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Two rows' medians of steps are alike up to this: what the issue allows beside a peer.
ALIKE = 1.3


class Unavailable(Exception):
    """This machine, or this version, has not what a row needs: it has no result, which is no failure."""


@dataclass(frozen=True)
class Criterion:
    """When a run has learned enough.

    Attributes:
        threshold: a mean return; for `steps` a number of steps. None: what the best of the row's policies comes to.
        kind: `training`: of the last 100 training episodes (ours: of the least exploring slots). `greedy`: of 100
            episodes without exploration, played apart from training: their time and steps are not counted. `steps`:
            nothing but that many steps, for their time.
    """

    threshold: float | None
    kind: Literal["training", "greedy", "steps"] = "training"

    @property
    def goal(self) -> float:
        """The threshold, once it is known."""
        assert self.threshold is not None
        return self.threshold

    @property
    def text(self) -> str:
        """For people."""
        if self.threshold is None:
            return "more than its peers"
        if self.kind == "steps":
            return f"{self.threshold:,.0f} steps"
        return f"{self.threshold:g}" + (" (greedy)" if self.kind == "greedy" else "")


@dataclass(frozen=True)
class Limits:
    """Where a run is given up."""

    steps: int
    seconds: float


@dataclass(frozen=True)
class Host:
    """`p2prl host`, its own players or joiners.

    Attributes:
        experiment: a preset's name.
        agent, env: instead of the preset's.
        settings: `--set KEY=VALUE`.
        players: of the host itself. joiners: `p2prl join` on loopback, one player and one state folder each.
        label: what stands in the table where this is another row's peer.
    """

    experiment: str
    agent: str = ""
    env: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    players: int = 1
    joiners: int = 0
    label: str = ""


@dataclass(frozen=True)
class Forced:
    """The bare loop of tests/learning/bare.py, whose players are `lag` weights versions behind, exactly.

    Attributes:
        experiment: a preset's name. settings: of its agent, laid over the preset's.
        slots: of the one player.
    """

    experiment: str
    lag: int
    settings: Mapping[str, object] = field(default_factory=dict)
    slots: int = 16


@dataclass(frozen=True)
class Sb3:
    """One process with stable-baselines3.

    Attributes:
        envs: environments that it steps in turn.
        steps: the length that its schedules are made for.
        env_args: the environment's keyword arguments.
        settings: the algorithm's.
        falling: those of them that fall to 0, linearly.
        normalise: observations and rewards by their running deviation (VecNormalize).
    """

    algorithm: Literal["PPO", "A2C", "DQN"]
    env: str
    steps: int
    envs: int = 1
    env_args: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    falling: tuple[str, ...] = ()
    normalise: bool = False

    @property
    def label(self) -> str:
        """For people."""
        return f"stable-baselines3 {self.algorithm}"


@dataclass(frozen=True)
class Policies:
    """Policies of mobile-env that do not learn; the best one's mean return is the row's threshold.

    Attributes:
        names: keys of `p2prl_envs.mobile_baselines.POLICIES`.
        size: the scenario's.
    """

    names: tuple[str, ...]
    size: str
    episodes: int = 100


@dataclass(frozen=True)
class Bar:
    """What a row must show, beside that all its seeds reach the criterion.

    Attributes:
        steps, seconds: the median at most so many times the peer's.
        alone: no seed of the peer reaches it.
        like: a row that all its seeds reached; this one's median of steps is at most `ALIKE` times its.
        faster: the median of seconds at most that of `like`.
        none: nothing at all is claimed, not even that it is reached.
    """

    steps: float | None = None
    seconds: float | None = None
    alone: bool = False
    like: str = ""
    faster: bool = False
    none: bool = False

    @property
    def needs_peer(self) -> bool:
        """True if there is nothing to say without the peer's figures."""
        return self.steps is not None or self.seconds is not None or self.alone

    @property
    def text(self) -> str:
        """For people."""
        parts = [
            f"steps <= {self.steps:g} x the peer's" if self.steps is not None else "",
            f"seconds <= {self.seconds:g} x the peer's" if self.seconds is not None else "",
            "the peer never reaches it" if self.alone else "",
            f"steps <= {ALIKE:g} x {self.like}'s" if self.like else "",
            "no slower than it" if self.faster else "",
            "none" if self.none else "",
        ]
        return ", ".join(part for part in parts if part) or "all seeds reach it"


@dataclass(frozen=True)
class Row:
    """One line of the matrix.

    Attributes:
        agent, env: for people.
        peer_limits: where the peer is given up, if not where ours is.
        short: the CI test that shows the same in the bare loop, FILE::TEST after tests/learning/test_learning_.
    """

    name: str
    agent: str
    env: str
    ours: Host | Forced
    criterion: Criterion
    limits: Limits
    peer: Sb3 | Host | Policies | None = None
    peer_limits: Limits | None = None
    bar: Bar = Bar()
    seeds: tuple[int, ...] = (1, 2, 3)
    short: str = ""


@dataclass
class Run:
    """What one seed came to.

    Attributes:
        steps, seconds: at the criterion; None if it was not reached.
        lag_mean: of ours, as `p2prl host` shows it then.
        curve: (steps, mean return) along the way.
        end: why it ended, where the criterion was not reached.
    """

    seed: int
    steps: int | None = None
    seconds: float | None = None
    lag_mean: float | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)
    end: str = ""

    @property
    def reached(self) -> bool:
        """The criterion was met."""
        return self.steps is not None
