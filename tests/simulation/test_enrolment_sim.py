"""Nobody gets in who was not let in: join codes and tokens, with Mallory on the LAN, and a host whose broker dies.

Whatever is lost, doubled, replayed or changed on the way: only who knows the code or a token is let in, and under its
own key; a volunteer pins the host's key or none; the owner's last word holds, over restarts too; and nothing is stored
of a key that is not on the list of the shard, or was never let in. In the end everybody who may is in, and all is
stored.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from p2prl.core import messages as m
from p2prl.core.codes import new_code
from p2prl.core.enrolment import Attempt, Proved
from p2prl.core.invitations import MAX_GUESSES
from tests.simulation.enrol import Air, DoorBroker, House, Volunteer
from tests.simulation.lan import Weather
from tests.simulation.mallory import MALLORY
from tests.simulation.member import Plan
from tests.simulation.world import Tally, World, schedule

SCENARIO = "enrolment"
_SEEDS = 60


class Lobby(World):
    """A world whose host lets in who knows its code."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        approve, uses = rng.random() < 0.2, rng.choice((None, None, 2))
        ttl_s = rng.choice((None, None, 20.0))
        super().__init__(rng, folder, Weather(), open=False, approve=approve)
        code = m.CodeNews(code=new_code(rng.randrange), uses=uses, ttl_s=ttl_s)
        self.house = House(uses, ttl_s, code, made={code.code: 0.0})
        self.volunteers: list[Volunteer] = []
        self.air = Air(self)
        self.host.new_broker = lambda host: DoorBroker(host, self)
        self.host.keeps = self.keeps

    def volunteer(self, index: int, how: str) -> None:
        """One more, with the code, a token, or something that is neither."""
        node = self.add(f"{index}" * 40, Plan(bundles=6, pace_s=0.5))
        node.barred = "not in"
        one = Volunteer(self, node, how)
        self.volunteers.append(one)
        self.lan.at(self.rng.random() * 3.0, one.begin)

    def secret_for(self, one: Volunteer) -> tuple[str, str]:
        """What a volunteer was told, and the token that it is of."""
        if not one.knows:
            return new_code(self.rng.randrange), ""
        if one.how == "token" and self.house.tokens:
            token, secret = self.house.tokens[-1]
            return secret, token
        return self.house.code.code or "1-anchor-maple", ""

    # --- what the owner does

    def owner(self, what: str, key: str = "") -> None:
        """An order."""
        broker = self.host.broker
        if isinstance(broker, DoorBroker) and broker.process.awake:
            broker.process.run(lambda: broker.order(what, key))
            self.check_list()

    def owner_acts(self) -> None:
        """Any order."""
        what = self.rng.choice(("admit", "remove", "remove", "quarantine", "release", "renew", "invite"))
        one = self.rng.choice(self.volunteers)
        standing = self._standings().get(one.node.key, "unknown")
        if what == "admit" and not (one.knows and standing in ("waiting", "removed")):
            return  # the owner lets nobody in who is not known
        if what == "quarantine" and standing != "admitted":
            return
        self.owner(what, one.node.key)

    def answered(self, what: str, key: str) -> None:
        """The owner saw that an order was carried out."""
        word = {"admit": "in", "remove": "removed", "quarantine": "quarantined", "release": "in"}.get(what)
        last = self.house.word.get(key)
        if word is None or (what == "release" and last != "quarantined"):
            return
        if what == "admit" and last == "quarantined":
            return  # it is to be released
        self.house.word[key] = word

    # --- what must hold

    def keeps(self, user: str, access: m.Access) -> None:
        """A shard stores something: is its sender on the list that it has, and was it ever let in?"""
        assert user in access.admitted, f"{user[:4]} is not on the shard's list, and gave something"
        assert user not in access.barred
        assert user in self._honest(), f"{user[:4]} was never let in, and gave something"

    def _honest(self) -> set[str]:
        return {one.node.key for one in self.volunteers if one.knows}

    def _standings(self) -> dict[str, str]:
        broker = self.host.broker
        return {} if broker is None else {entry.key: entry.standing for entry in broker.entries()}

    def check_list(self) -> None:
        """After whatever may have changed it."""
        honest, standings = self._honest(), self._standings()
        for key, standing in standings.items():
            if standing in ("admitted", "waiting"):
                assert key in honest, f"{key[:4]} is {standing}, and does not know the code"
        for key, word in self.house.word.items():
            standing = standings.get(key, "unknown")
            if word in ("removed", "quarantined"):
                assert standing == word, f"the owner {word} {key[:4]}, which is {standing}"

    def check_proved(self, proved: Proved) -> None:
        """A proof was right."""
        assert proved.key in self._honest(), f"{proved.key[:4]} proved what it does not know"
        self.tally.admissions += 1
        if proved.how == "token":
            return
        house, now = self.house, self.lan.now
        code = house.code.code or max(house.made, key=lambda one: house.made[one])
        if house.ttl_s is not None:
            # A clock that jumped while no broker ran may give a code another life, but not a longer one; so may the
            # death of a broker in its first second.
            broker = self.host.broker
            assert broker is not None
            started = broker.started - self.host.machine.monotonic
            since = started if self.tally.clock_jumps or house.known_since is None else house.known_since
            age_s = now - max(house.made[code], since)
            assert age_s <= house.ttl_s + 0.5, f"{code} let somebody in after {age_s:.1f} s"
        took = house.took.setdefault(code, set())
        took.add(proved.key)
        # Who was proved to just when the broker died may have taken a use that nobody counted.
        deaths = self.host.starts["broker"] - 1
        assert house.uses is None or len(took) <= house.uses + deaths, f"{code} let in {len(took)}"

    def attempted(self, attempt: Attempt) -> None:
        """The owner sees an attempt."""
        if attempt.outcome == "wrong_code" and "join code" in attempt.text:
            code = self.house.code.code
            self.house.guessed[code] += 1
            allowed = MAX_GUESSES * self.host.starts["broker"]
            assert self.house.guessed[code] <= allowed, (
                f"{code} was guessed at {self.house.guessed[code]} times"
            )

    def is_heard(self, message: m.EnrolProved) -> bool:
        """True if Mallory only replays it to himself."""
        return any(one == message for _, peer, one in self.air.mallory._heard if b"mallory" not in peer)

    # --- to the end

    def everybody_is_let_in(self) -> None:
        """Mallory is gone; the owner sees to it that those who may get in do."""
        self.fair = True
        for one in self.volunteers:
            word = self.house.word.get(one.node.key, "in")
            if not one.knows or word != "in":
                one.node.barred = word  # its card says so, and its person is told
            else:
                self._let_in(one)

    def _let_in(self, one: Volunteer) -> None:
        for _ in range(30):
            standing = self._standings().get(one.node.key, "unknown")
            if one.inside and standing == "admitted":
                break
            if one.how == "token":
                self.owner("invite")
            elif not self.house.code.code:
                self.owner("renew")
            if standing == "waiting" and self.rng.random() < 0.5:
                self.owner("admit", one.node.key)
            if not one.inside:
                one.begin()
            self.lan.run_until(self.lan.now + 5.0)
        assert one.inside, f"{one.node.key[:4]} knows the code, and is not let in"
        one.node.barred = ""
        one.node.start()


def simulate(seed: int) -> Tally:
    """One schedule. Raises AssertionError if something that must hold does not."""
    rng = random.Random(seed)
    with schedule(SCENARIO, seed) as folder:
        world = Lobby(rng, folder)
        for index in range(3):
            world.volunteer(index, rng.choice(("code", "code", "code", "token", "wrong")))
        world.host.start()
        for _ in range(7):
            kind = rng.choice(("mallory", "mallory", "owner", "owner", "broker", "host", "clock"))
            if kind == "mallory":
                world.air.mallory.attack()
            elif kind == "owner":
                world.owner_acts()
            elif kind == "broker":
                world.part_of_host_dies()
            elif kind == "host":
                world.host_dies(3.0 * rng.random())
            else:
                world.clock_jumps()
            world.lan.run_until(world.lan.now + 4.0)
        world.everybody_is_let_in()
        stored = {
            key: world.host.disk.per_node[key] for key, word in world.house.word.items() if word != "in"
        }
        world.fair_weather()
        for key, count in stored.items():
            assert world.host.disk.per_node[key] == count, f"{key[:4]} is out, and gave something"
        assert world.host.disk.per_node[MALLORY] == 0
        return world.tally


@pytest.mark.parametrize("seed", range(_SEEDS), ids=lambda seed: f"seed{seed}")
def test_nobody_gets_in_who_was_not_let_in(seed: int) -> None:
    simulate(seed)
