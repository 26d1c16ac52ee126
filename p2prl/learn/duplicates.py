"""Do the slots of a player really play different episodes?

An environment that ignores `reset(seed=)` with a generator of its own, always seeded alike, makes every slot of every
machine play the same episodes: the run collects one machine's worth of data. Two signs, each sound by itself, are
looked for at the beginning of a player's life, when slots explore most:

* *starts*: all slots began with byte-identical observations although they were given different seeds, and yet a later
  start differs. A fixed start (a chess board) never differs, so it raises nothing; a random start that is the same in
  all slots cannot come from their seeds.
* *sessions*: two slots' observations, actions and rewards are byte-identical for two whole bundles on end. Slots draw
  their exploration apart, so even a deterministic environment does not do this unless the slots explore nothing; then
  the sessions are worthless copies all the same, and the text says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p2prl.core.schema import RESET
from p2prl.learn.contracts import Array

_BUNDLES = 2


class DuplicateWatch:
    """Fed by the rollout with its first bundles; `done` when nothing more can be learned from them.

    Attributes:
        warning: one line that names the environment, or an empty string.
    """

    def __init__(self, env_id: str, slots: int, *, patience: int = 200) -> None:
        """`patience`: bundles to wait for a second start before giving up."""
        self.warning = ""
        self._env_id = env_id
        self._slots = slots
        self._patience = patience
        self._bundles = 0
        self._start: bytes | None = None
        self._alike: set[tuple[int, int]] | None = None
        self._starts_open = slots > 1
        self._sessions_open = slots > 1

    @property
    def done(self) -> bool:
        """True if `see` need not be called any more."""
        return bool(self.warning) or not (self._starts_open or self._sessions_open)

    def see(self, columns: Mapping[str, Array], names: Sequence[str]) -> None:
        """Look at a bundle: all its columns `[T or T+1, B, ...]`, and the names of the observations."""
        self._bundles += 1
        if self._starts_open:
            self._see_starts([columns[name] for name in names], columns["flags"])
        if self._sessions_open and not self.warning:
            actions = [name for name in columns if name.split(".")[0] == "action"]
            self._see_sessions([columns[name] for name in (*names, *actions, "reward")])

    def _see_starts(self, observations: Sequence[Array], flags: Array) -> None:
        if self._bundles == 1:
            first = {_row(observations, 0, slot) for slot in range(self._slots)}
            self._starts_open = len(first) == 1
            self._start = first.pop()
        resets = (flags & RESET).nonzero()
        for tick, slot in zip(*(axis.tolist() for axis in resets), strict=True):
            if self._starts_open and _row(observations, tick + 1, slot) != self._start:
                self._starts_open = False
                self.warning = (
                    f"{self._env_id} ignores reset(seed=): all {self._slots} slots began with the same random start, "
                    "so all players play the same episodes. Seed its generator in reset"
                )
        if self._bundles >= self._patience:
            self._starts_open = False

    def _see_sessions(self, columns: Sequence[Array]) -> None:
        seen: dict[bytes, int] = {}
        alike = set()
        for slot in range(self._slots):
            content = b"".join(column[:, slot].tobytes() for column in columns)
            if content in seen:
                alike.add((seen[content], slot))
            else:
                seen[content] = slot
        self._alike = alike if self._alike is None else self._alike & alike
        if self._alike and self._bundles >= _BUNDLES:
            one, other = min(self._alike)
            self.warning = (
                f"{self._env_id}: slots {one} and {other} play byte-identical sessions; either it ignores "
                "reset(seed=), or it is deterministic and the agent does not explore"
            )
        self._sessions_open = bool(self._alike) and self._bundles < _BUNDLES


def _row(observations: Sequence[Array], tick: int, slot: int) -> bytes:
    return b"".join(column[tick, slot].tobytes() for column in observations)
