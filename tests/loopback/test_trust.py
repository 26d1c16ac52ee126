"""Who gets in and who does not: join codes, tokens, the owner's word; and what the LAN's worst neighbour can try."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from p2prl.core import messages as m
from p2prl.net.addresses import KnownHosts
from p2prl.net.keys import fingerprint, new_key_pair
from p2prl.net.ports import taken_ports
from tests import kit
from tests.conftest import wait_until
from tests.loopback.trust_kit import CODE, Enrolling, House, Impostor, Middle, house

_WITH_CODE = ("--code", CODE)


# --- the join code


def test_the_code_lets_a_node_in_once_and_for_all(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place:
        assert place.code() == CODE
        stranger = kit.run(tmp_path, "join", place.target, "--json", name="stranger")
        assert stranger.returncode == 4
        assert "--code" in stranger.stderr
        with place.join("--code", " 17 Acorn LADDER ") as joiner:
            joiner.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
            assert joiner.end() == 0
        with place.join() as again:  # without a code, from now on
            again.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
            assert again.end() == 0
        assert "the code is not needed" not in again.stderr
        with place.join("--code", "18-acorn-ladder") as other:  # of some other host, perhaps
            other.wait_for_line(f"at {place.target} knows this machine, .* the code is not needed")
            other.wait_for("joined")
            assert other.end() == 0
        assert place.nodes()["joiner"]["standing"] == "admitted"
        assert place.nodes()["joiner"]["how"] == "code"
        secret_files = [place.home / "hosting" / "access.json", tmp_path / "home-joiner" / "known_hosts.json"]
        for file in secret_files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_code_comes_from_the_environment_or_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "code.txt"
    file.write_text(f"{CODE}\n", encoding="utf-8")
    with house(tmp_path, *_WITH_CODE) as place:
        with place.join(name="by-env", env={"P2PRL_CODE": CODE}) as joiner:
            joiner.wait_for("joined")
        with place.join("--code-file", str(file), name="by-file") as joiner:
            joiner.wait_for("joined")


def test_a_wrong_code_is_refused_and_the_owner_sees_it(tmp_path: Path) -> None:
    wrong = ("--code", "18-acorn-ladder", "--wait", "600")
    with house(tmp_path, *_WITH_CODE) as place, place.join(*wrong) as joiner:
        assert joiner.wait(20.0) == 4
        assert "that is not this host's join code" in joiner.stderr
        assert "--wait does not try a wrong one again" in joiner.stderr
        place.program.wait_for_line("wrong")
        assert "joiner" not in place.nodes()


def test_a_code_admits_no_more_nodes_than_it_was_given(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, "--code-uses", "1") as place:
        place.admitted("first")
        place.program.wait_for("code", lambda e: e["reason"] == "used")
        with Enrolling(place.base) as second:
            answer = second.prove(CODE, new_key_pair().public)
        assert isinstance(answer, m.Refusal)
        assert answer.reason == "no_code"
        fresh = place.owner("code", place.target, "--new", "--json")
        with Enrolling(place.base) as third:
            answer = third.prove(json.loads(fresh.stdout)["code"], new_key_pair().public)
        assert isinstance(answer, m.EnrolProved)


def test_a_hundred_wrong_codes(tmp_path: Path) -> None:
    """From a hundred addresses, since one alone is slowed down at once."""
    with house(tmp_path, *_WITH_CODE) as place:
        reasons = []
        for guess in range(100):
            with Enrolling(place.base, source=f"127.0.1.{guess + 1}") as attacker:
                answer = attacker.prove(f"{guess % 16 + 1}-wizard-wolf", new_key_pair().public)
                assert isinstance(answer, m.Refusal)
                reasons.append(answer.reason)
        assert set(reasons) <= {"wrong_code", "rate_limited"}
        wrong = reasons.count("wrong_code")
        assert wrong >= 10

        def replaced() -> list[str]:
            return [event["code"] for event in place.program.of("code") if event["reason"] == "guesses"]

        wait_until(lambda: len(replaced()) == wrong // 10, 10, "a new code after each ten wrong guesses")
        assert len({CODE, *replaced()}) == 1 + wrong // 10
        with place.join("--code", CODE, name="late") as late:
            assert late.wait(20.0) == 4
        newest = place.program.of("code")[-1]["code"]
        # The address of the late one waits a second for its wrong guess; the joiner does that by itself.
        with place.join("--code", newest) as joiner:
            joiner.wait_for("joined")
        assert {name for name, node in place.nodes().items() if node["standing"] == "admitted"} == {"joiner"}


def test_one_address_that_guesses_is_slowed_down(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place, Enrolling(place.base) as attacker:
        keys = new_key_pair()
        first = attacker.prove("1-wizard-wolf", keys.public)
        assert isinstance(first, m.Refusal)
        assert first.reason == "wrong_code"
        second = attacker.prove("2-wizard-wolf", keys.public)
        assert isinstance(second, m.Refusal)
        assert second.reason == "rate_limited"
        assert second.retry_after_s > 0


# --- somebody in between


def test_a_replayed_enrolment_admits_nobody(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place, Middle(place.base, lambda message: message) as middle:
        keys = new_key_pair()
        with Enrolling(middle.base) as honest:
            assert isinstance(honest.prove(CODE, keys.public), m.EnrolProved)
        place.owner("remove", "by-hand", "--host", place.target)
        said = [message for side, message in middle.heard if side == "joiner"]
        with Enrolling(place.base, source="127.0.2.1") as replayer:
            answers = [replayer.ask(message) for message in said]
        assert isinstance(answers[-1], m.Refusal)
        assert answers[-1].reason == "wrong_code"
        assert place.nodes()["by-hand"]["standing"] == "removed"


def _swap(field: str, value: str, kind: type[m.Message]) -> object:
    return lambda message: (
        msgspec.structs.replace(message, **{field: value}) if isinstance(message, kind) else message
    )


_MALLORY = new_key_pair().public


@pytest.mark.parametrize(
    ("kind", "field"), [(m.EnrolCard, "server_key"), (m.EnrolBegin, "node_key"), (m.EnrolBegin, "name")]
)
def test_a_machine_in_the_middle_that_changes_a_message(
    tmp_path: Path, kind: type[m.Message], field: str
) -> None:
    """The keys of both sides, and the name, are under the proof."""
    tamper = _swap(field, _MALLORY if field != "name" else "mallory", kind)
    with house(tmp_path, *_WITH_CODE) as place, Middle(place.base, tamper) as middle:  # type: ignore[arg-type]
        target = f"127.0.0.1:{middle.base}"
        with kit.join(tmp_path, "--code", CODE, target=target, agent=kit.IDLE) as joiner:
            assert joiner.wait(30.0) == 4
        assert not joiner.of("joined")
        assert not place.nodes()
        assert "mallory" not in place.nodes()


def test_a_machine_that_only_pretends_to_be_the_host(tmp_path: Path) -> None:
    """It answers the joiner's proof with a proof of its own making: it does not know the code."""

    def forge(message: m.Message) -> m.Message:
        if isinstance(message, m.Refusal | m.EnrolProved):
            return m.EnrolProved(proof=os.urandom(32), standing="admitted")
        return message

    with house(tmp_path, *_WITH_CODE) as place, Middle(place.base, forge) as middle:
        target = f"127.0.0.1:{middle.base}"
        with kit.join(tmp_path, "--code", CODE, target=target, agent=kit.IDLE) as joiner:
            assert joiner.wait(30.0) == 4
        assert "does not know the join code" in joiner.stderr
        assert not joiner.of("joined")


def test_who_has_a_code_is_not_taken_in_by_an_open_host(tmp_path: Path) -> None:
    """Anybody can announce one, under any name; it cannot prove the code."""
    with house(tmp_path, "--open") as place:
        with place.join("--code", CODE) as joiner:
            assert joiner.wait(20.0) == 4
        assert "no join code to prove itself" in joiner.stderr
        assert not joiner.of("joined")
        with place.join() as willing:
            willing.wait_for("joined")
        with place.join("--code", CODE, name="joiner-2") as again:
            assert again.wait(20.0) == 4


def test_a_stolen_name_with_another_key_is_refused_as_ssh_would(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, name="lab") as place:
        with place.join("--code", CODE) as joiner:
            joiner.wait_for("joined")
            assert joiner.end() == 0
        first = fingerprint(place.keys("lab").public)
    thief = tmp_path / "thief"
    with house(thief, *_WITH_CODE, name="lab") as stolen:
        done = kit.run(
            tmp_path,
            "join",
            "lab",
            "--interface",
            "lo",
            "--code",
            CODE,
            "--json",
            "--agent",
            kit.IDLE,
            name="joiner",
        )
        assert done.returncode == 4
        assert "KEY CHANGED" in done.stderr
        assert first in done.stderr
        assert fingerprint(stolen.keys("lab").public) in done.stderr
        assert "p2prl forget lab" in done.stderr
        assert "joiner" not in stolen.nodes()
        assert kit.run(tmp_path, "forget", "lab", name="joiner").returncode == 0
        with kit.join(tmp_path, "--code", CODE, target=stolen.target, agent=kit.IDLE) as joiner:
            joiner.wait_for("joined")


def test_what_answers_in_the_hosts_place_ends_no_member(tmp_path: Path) -> None:
    """Cards and refusals are not proved: they are said, and the member waits for its own host."""
    with house(tmp_path, *_WITH_CODE, name="lab") as place:
        run_id = place.program.wait_for("started")["run_id"]
        with place.join("--code", CODE) as joiner:
            joiner.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
            with Enrolling(place.base) as enrolling:
                true = enrolling.card()
            for child in place.program.children():
                child.kill()
            place.program.kill()
            answers = [
                m.Refusal(reason="protocol", text="upgrade please"),
                msgspec.structs.replace(true, standing="removed"),
                msgspec.structs.replace(true, standing="unknown"),
                msgspec.structs.replace(true, protocol=99),
            ]
            wait_until(lambda: not free_ports(place.base), 10, "the host's ports are free")
            with Impostor(place.base, answers) as impostor:
                wait_until(lambda: impostor.answered >= 2 * len(answers), 60, "it was asked often enough")
                joiner.wait_for_line("unproved: lab's owner removed this node")
                assert joiner.code is None
            again = ("--resume", "--players", "0", "--results", str(tmp_path / "results"))
            before = joiner.last()
            assert before is not None
            with kit.host(tmp_path, *again, name="lab", port=place.base, open_=False, cwd=kit.ROOT) as host:
                assert host.wait_for("started")["run_id"] == run_id
                joiner.wait_for(
                    "progress", lambda e: e["bundles"]["stored"] > before["bundles"]["stored"], timeout=40
                )


def free_ports(base: int) -> list[int]:
    """Those of a host's block that something still listens on."""
    return taken_ports([base, base + 1, base + 2], ("127.0.0.1",))


def guesses(place: House) -> int:
    """Wrong ones, as the broker's file counts them."""
    code = json.loads((place.results / "broker.json").read_text(encoding="utf-8"))["code"]
    return int(code["guesses"]) if code else 0


def test_a_broker_that_is_killed_gives_a_code_no_longer_life(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, "--code-ttl", "12", "--code-uses", "1") as place:
        with Enrolling(place.base) as enrolling:
            answer = enrolling.prove("1-wizard-wolf", new_key_pair().public)
            assert isinstance(answer, m.Refusal)
        wait_until(lambda: guesses(place) == 1, 10)
        [broker] = place.program.children("broker")
        broker.kill()
        place.program.wait_for_line("broker: is back")
        place.program.wait_for("code", lambda e: e["reason"] == "expired", timeout=20)
        with Enrolling(place.base, source="127.0.3.1") as late:
            answer = late.prove(CODE, new_key_pair().public)
        assert isinstance(answer, m.Refusal)
        assert answer.reason == "no_code"


# --- the owner's word


def test_with_approve_a_newcomer_waits_for_the_owner(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, "--approve") as place, place.join("--code", CODE) as joiner:
        joiner.wait_for_line("waiting until")
        place.program.wait_for_line("waits for you")
        assert place.nodes()["joiner"]["standing"] == "waiting"
        assert place.status()["waiting_nodes"] == ["joiner"]
        assert not joiner.of("joined")
        place.owner("admit", "joiner", "--host", place.target)
        joiner.wait_for("joined")
        assert place.nodes()["joiner"]["standing"] == "admitted"


def test_a_removed_node_is_cut_at_once_and_stays_out(tmp_path: Path) -> None:
    settings = ("chain", "--players", "1")
    with house(tmp_path, *_WITH_CODE, settings=settings) as place:
        keys = place.admitted("spy")
        with place.peer(2, "sub", keys) as listener, place.peer(0, keys=keys) as speaker:
            assert listener.hear(30.0) is not None, "an admitted key gets the weights"
            assert isinstance(speaker.ask(m.StatusAsk(), m.StatusReply), m.StatusReply)
            place.owner("remove", "spy", "--host", place.target)
            version = place.status()["weights_version"]
            wait_until(lambda: place.status()["weights_version"] > version + 2, 30, "newer weights")
            while (heard := listener.hear(0.5)) is not None:
                header = msgspec.msgpack.decode(heard.frames[0])
                assert header["version"] <= version, "weights reached a removed node"
            speaker.offer(m.StatusAsk())
            assert speaker.hear(1.0) is None
        with place.peer(0, keys=keys) as again:
            again.offer(m.StatusAsk())
            assert again.hear(1.0) is None
        with Enrolling(place.base) as enrolling:  # it still knows the code
            answer = enrolling.prove(CODE, keys.public)
        assert isinstance(answer, m.Refusal)
        assert answer.reason == "removed"
        assert place.status()["refused_frames"]["not_admitted"] >= 1


def test_who_stops_while_it_waits_for_the_owner_needs_no_code_the_next_time(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, "--code-uses", "1", "--approve", name="lab") as place:
        with place.join("--code", CODE) as joiner:
            joiner.wait_for_line("waiting until")
            assert joiner.end() == 0
        memory = KnownHosts(tmp_path / "home-joiner")
        assert [(host.name, host.run_id) for host in memory.hosts()] == [("lab", "")]
        place.owner("admit", "joiner", "--host", place.target)
        with place.join() as again:
            run_id = again.wait_for("joined")["run_id"]
            assert [(host.name, host.run_id) for host in memory.hosts()] == [("lab", run_id)]


def test_the_hosts_screen_learns_of_another_code_after_a_node_was_put_out(tmp_path: Path) -> None:
    """Which cuts all connections to the broker, that of the host's own command too."""
    with house(tmp_path, *_WITH_CODE) as place:
        keys = place.admitted("spy")
        with place.peer(0, keys=keys) as speaker:
            assert isinstance(speaker.ask(m.StatusAsk(), m.StatusReply), m.StatusReply)
            place.owner("remove", "spy", "--host", place.target)

            def cut() -> bool:
                speaker.offer(m.StatusAsk())
                return speaker.hear(0.2) is None

            wait_until(cut, 10, "the connections are cut")
        fresh = json.loads(place.owner("code", place.target, "--new", "--json").stdout)["code"]
        event = place.program.wait_for("code", lambda e: e["code"] == fresh)
        assert event["reason"] == "asked"


def test_orders_about_nodes_that_are_out_say_what_is_so(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place:
        place.admitted("spy")
        host = ("--host", place.target)
        place.owner("quarantine", "spy", *host, "--reason", "too slow")
        place.owner("quarantine", "spy", *host, "--reason", "too odd")
        assert place.nodes()["spy"]["reason"] == "too odd"
        place.owner("admit", "spy", *host)
        assert place.nodes()["spy"]["standing"] == "admitted"
        place.owner("remove", "spy", *host)
        done = kit.run(tmp_path, "quarantine", "spy", *host, name=place.name)
        assert done.returncode == 1
        assert "it is removed" in done.stderr
        place.owner("admit", "spy", *host)
        assert place.nodes()["spy"]["standing"] == "admitted"
        # In the host's own state folder nobody has to name its port.
        assert "spy" in place.owner("nodes").stdout


def row_of(place: House, name: str) -> kit.Event:
    """What `p2prl status --json` says of a node."""
    rows: list[kit.Event] = place.status()["nodes"]
    return next(row for row in rows if row["name"] == name)


def test_a_member_that_is_removed_is_told_and_ends(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place, place.join("--code", CODE) as joiner:
        joiner.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
        with place.join("--code", CODE, name="other") as other:
            other.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
            place.owner("remove", "joiner", "--host", place.target)
            assert joiner.wait() == 4
            node = fingerprint(place.keys("joiner").public)
            assert f"only the owner can let it in again: p2prl admit {node}" in joiner.stderr
            before = other.last()
            assert before is not None
            other.wait_for("progress", lambda e: e["bundles"]["stored"] > before["bundles"]["stored"] + 3)
            late = place.join(name="joiner")
            with late:
                assert late.wait() == 4
            assert row_of(place, "joiner")["reason"] == "removed"
            place.owner("admit", "joiner", "--host", place.target)
            assert row_of(place, "joiner")["reason"] == "it was removed; now it may come back"
            with place.join(name="joiner") as back:
                back.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
            assert kit.balanced(place.status()["bundles"])


def test_who_was_let_in_is_known_to_the_next_run_and_after_a_kill(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, name="lab") as place:
        place.admitted("spy")
        place.owner("remove", "spy", "--host", place.target)
        with place.join("--code", CODE) as joiner:
            joiner.wait_for("joined")
        place.program.kill()
    with house(tmp_path, name="lab") as place:  # another run, with another code
        standings = {name: node["standing"] for name, node in place.nodes().items()}
        assert standings["spy"] == "removed"
        assert standings["joiner"] == "admitted"
        with place.join() as joiner:
            joiner.wait_for("joined")


def test_a_token_admits_as_often_as_it_says_without_anybody_typing(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place:
        file = tmp_path / "token"
        place.owner("invite", place.target, "--out", str(file), "--uses", "1")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        url = file.read_text(encoding="utf-8").strip()
        assert url.startswith("p2prl://")
        with kit.join(
            tmp_path, "--token", str(file), "--interface", "lo", target="", agent=kit.IDLE
        ) as joiner:
            joiner.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
            assert joiner.end() == 0
        assert place.nodes()["joiner"]["how"] == "token"
        with kit.join(tmp_path, "--token", url, "--interface", "lo", target="", agent=kit.IDLE) as again:
            again.wait_for("joined")
        with kit.join(tmp_path, "--token", url, name="second", target="", agent=kit.IDLE) as second:
            assert second.wait(20.0) == 4
        assert "second" not in place.nodes()


def test_a_token_of_another_host_leads_nowhere(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place:
        url = place.owner("invite", place.target).stdout.strip()
        with house(tmp_path, *_WITH_CODE) as other:
            with kit.join(tmp_path, "--token", url, target=other.target, agent=kit.IDLE) as joiner:
                assert joiner.wait(20.0) == 4
            assert "the token is for a host with the key" in joiner.stderr
            assert not other.nodes()
        assert not place.nodes()


def test_a_token_is_the_owners_word_also_with_approve(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE, "--approve") as place:
        url = place.owner("invite", place.target).stdout.strip()
        with kit.join(tmp_path, "--token", url, target=place.target, agent=kit.IDLE) as joiner:
            joiner.wait_for("joined")
        assert place.nodes()["joiner"]["how"] == "token"


# --- rights


def test_a_players_key_publishes_no_weights(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place:
        keys = place.admitted("spy")
        before = place.status()
        header = m.WeightsHeader(
            run_id=before["run"]["run_id"], version=10_000, codec=m.WEIGHTS_CODEC, size_bytes=3
        )
        with place.peer(3, "push", keys) as publisher:
            publisher.offer(header, b"abc")
            wait_until(
                lambda: place.status()["refused_frames"].get("not_permitted", 0) > 0,
                10,
                "it is refused and counted",
            )
        assert place.status()["weights_version"] < 10_000


def test_a_players_key_gives_no_orders(tmp_path: Path) -> None:
    orders = [
        m.StopAsk(reason="signal"),
        m.Rename(name="mallory"),
        m.NodesAsk(),
        m.AdmitAsk(key=_MALLORY),
        m.RemoveAsk(key=_MALLORY),
        m.QuarantineAsk(key=_MALLORY),
        m.CodeAsk(),
        m.InviteAsk(uses=1, ttl_s=60.0),
        m.TrainerReport(state="training", insert_ceiling=0),
        m.ShardReceipts(shard=0, node=_MALLORY, boot_id="b", verdicts=[]),
        m.ShardReport(
            index=0,
            boot_id="b",
            sessions=0,
            ticks=0,
            size_bytes=0,
            inserted_ticks=0,
            steps_total=0,
            stored=0,
            duplicate=0,
        ),
        m.Hello(protocol=m.PROTOCOL, version="0", role="trainer", name="x", boot_id="b"),
        m.Hello(protocol=m.PROTOCOL, version="0", role="shard", name="x", boot_id="b"),
        m.Hello(protocol=m.PROTOCOL, version="0", role="owner", name="x", boot_id="b"),
    ]
    with house(tmp_path, *_WITH_CODE) as place:
        keys = place.admitted("spy")
        with place.peer(keys=keys) as peer:
            for order in orders:
                peer.say(order)
            assert peer.ask(m.StatusAsk(), m.StatusReply).host_name == place.name
        shown = place.status()
        assert shown["refused_frames"]["not_permitted"] == len(orders)
        assert place.code() == CODE
        assert set(place.nodes()) == {"spy"}
        assert place.program.code is None


def test_only_the_owner_gives_orders(tmp_path: Path) -> None:
    with house(tmp_path, *_WITH_CODE) as place:
        with place.join("--code", CODE) as joiner:
            joiner.wait_for("joined")
            for command in (("nodes", place.target), ("remove", "joiner", "--host", place.target)):
                done = kit.run(tmp_path, *command, name="joiner")
                assert done.returncode == 4, done.stderr
                assert "owner" in done.stderr
            shown = kit.run(tmp_path, "status", place.target, name="joiner")
            assert shown.returncode == 0, shown.stderr
            unknown = kit.run(tmp_path, "status", place.target, name="passer-by")
            assert unknown.returncode == 4
        assert place.nodes()["joiner"]["standing"] == "admitted"


# --- keys that are not known


def turned_away(place: House) -> tuple[int, int]:
    """Connections with an unknown key, and without a key, that broker and shards counted."""
    shown = place.status()
    refused = Counter(shown["refused_frames"])
    for shard in shown["shards"]:
        refused.update(shard["refused_reasons"])
    return (
        refused["not_admitted"] + refused["not_permitted"],
        refused["no_curve"] + refused["bad_handshake"],
    )


def test_no_key_and_a_random_key_reach_nothing(tmp_path: Path) -> None:
    """On every socket but enrol: no answer, no effect, and each attempt is counted."""
    offsets = {"control": (0, "dealer"), "weights": (2, "sub"), "publish": (3, "push"), "push": (10, "push")}
    offsets["sample"] = (11, "dealer")
    with house(tmp_path, *_WITH_CODE) as place, place.join("--code", CODE) as joiner:
        joiner.wait_for("progress", lambda e: e["bundles"]["stored"] > 0)
        for curve in (True, False):
            for offset, kind in offsets.values():
                with place.peer(offset, kind, curve=curve) as peer:
                    if kind != "sub":
                        peer.offer(m.StatusAsk())
                    if kind != "push":
                        assert peer.hear(0.5) is None
        # A shard holds an unknown key for some seconds: the word that it was admitted may be on its way.
        wait_until(lambda: all(count >= 5 for count in turned_away(place)), 20, "all of them are counted")
        [row] = [node for node in place.status()["nodes"] if node["name"] == "joiner"]
        assert row["bundles"]["refused"] == 0
