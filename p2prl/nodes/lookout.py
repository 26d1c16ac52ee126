"""When a member's host falls silent: look where it is now, and whether it still wants this node."""

from __future__ import annotations

from p2prl.core.bounds import line
from p2prl.errors import NotAdmitted, P2prlError
from p2prl.nodes.identity import check_standing
from p2prl.nodes.locate import Located, remember
from p2prl.nodes.relocate import Relocator
from p2prl.nodes.wiring import MemberConfig

#: The host answers each second; after this it is looked for, and dialled anew no more often than this.
_LOOK_AFTER_S, _REDIAL_S = 5.0, 10.0
#: A card is not proved: it takes so many that say the same until this node gives up.
_REFUSALS = 3
_CLOSE_S = 3.0


class Lookout:
    """Starts looking when the host is silent, and stops when it is heard again."""

    def __init__(self, config: MemberConfig) -> None:
        self._config = config
        self._relocator: Relocator | None = None
        self._dialled = -1e9
        self._refusals = 0

    def look(self, silent_s: float, place: tuple[str, int], now: float) -> Located | P2prlError | None:
        """Once a second. Where to dial now, or why there is no point in it; None to go on as before.

        Args:
            silent_s: since the host said anything.
            place: where it is dialled: its address and base port.
        """
        if silent_s < _LOOK_AFTER_S or self._config.own:
            self.close(wait=False)
            self._refusals = 0
            return None
        if self._relocator is None:
            config = self._config
            self._relocator = Relocator(config.server_key, config.keys.public, [place], config.interfaces)
        found = self._relocator.found()
        if found is None or isinstance(found, P2prlError):
            return found
        refused = self._refused(found)
        if refused is not None:
            return refused
        moved = (found.address, found.base_port) != place
        if not moved and now - self._dialled < _REDIAL_S:
            return None
        self._dialled = now
        if moved:
            remember(found)
        return found

    def close(self, wait: bool = True) -> None:
        """Stop looking."""
        if self._relocator is not None:
            self._relocator.close()
            if wait:
                self._relocator.join(_CLOSE_S)
            self._relocator = None

    def _refused(self, found: Located) -> P2prlError | None:
        card = found.card
        try:
            check_standing(card)
        except NotAdmitted as error:
            self._refusals += 1
            return error if self._refusals >= _REFUSALS else None
        if card.standing == "unknown" and not card.open:
            self._refusals += 1
            name = line(card.host_name, 60)
            text = f"{name} does not know this node any more: join it again with its code"
            return NotAdmitted(text) if self._refusals >= _REFUSALS else None
        self._refusals = 0
        return None
