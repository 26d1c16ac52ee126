"""When a member's host falls silent: look where it is now.

Whatever a card or a refusal says here is not proved, and ends nobody: a machine that answers in the host's place could
send home a whole class. It is said, and the host is dialled on; only over its own connection can it put this node out.
"""

from __future__ import annotations

from collections.abc import Callable

from p2prl.core.bounds import line
from p2prl.errors import NotAdmitted
from p2prl.nodes.identity import check_standing
from p2prl.nodes.locate import Located
from p2prl.nodes.relocate import Relocator
from p2prl.nodes.wiring import MemberConfig

#: The host answers each second; after this it is looked for, and dialled anew no more often than this.
_LOOK_AFTER_S, _REDIAL_S = 5.0, 10.0
#: The same teacher's other run, on other ports, may be a second one beside ours, which is back soon: so long we wait.
_OTHER_RUN_AFTER_S = 300.0
_CLOSE_S = 3.0


class Lookout:
    """Starts looking when the host is silent, and stops when it is heard again.

    Args:
        say: gets (level, source, text) for people.
    """

    def __init__(self, config: MemberConfig, say: Callable[[str, str, str], None]) -> None:
        self._config, self._say = config, say
        self._relocator: Relocator | None = None
        self._dialled = -1e9
        #: What was said since the host fell silent: each line once.
        self._said: set[str] = set()

    def look(self, silent_s: float, place: tuple[str, int], run_id: str, now: float) -> Located | None:
        """Once a second. Where to dial now; None to go on as before.

        Args:
            silent_s: since the host said anything.
            place: where it is dialled: its address and base port.
            run_id: what it hosts; empty if it did not say yet.
        """
        if silent_s < _LOOK_AFTER_S or self._config.own:
            self.close(wait=False)
            self._said.clear()
            return None
        if self._relocator is None:
            config = self._config
            self._relocator = Relocator(
                config.server_key, config.keys.public, [place], config.interfaces, run_id
            )
        found = self._relocator.found()
        if found is None:
            return None
        other = run_id not in ("", found.card.run_id) and found.base_port != place[1]
        if other and silent_s < _OTHER_RUN_AFTER_S:
            self._say_other(found)
            return None
        self._tell(found)
        moved = (found.address, found.base_port) != place
        if not moved and now - self._dialled < _REDIAL_S:
            return None
        self._dialled = now
        return found

    def close(self, wait: bool = True) -> None:
        """Stop looking."""
        if self._relocator is not None:
            self._relocator.close()
            if wait:
                self._relocator.join(_CLOSE_S)
            self._relocator = None

    def _say_other(self, found: Located) -> None:
        where = f"{line(found.card.host_name, 60)} at {found.address} port {found.base_port}"
        self._say_once(
            f"{where} has this host's key, and hosts another run: this node goes there if its own host stays away "
            f"for {_OTHER_RUN_AFTER_S / 60:.0f} min"
        )

    def _tell(self, found: Located) -> None:
        card = found.card
        text = ""
        try:
            check_standing(card, self._config.keys.public)
        except NotAdmitted as error:
            text = str(error)
        if card.standing == "unknown" and not card.open:
            text = f"{line(card.host_name, 60)} does not know this node any more: join it again with its code"
        if text:
            self._say_once(f"what answers at {found.address} says, unproved: {text}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say("warning", "host", text)
