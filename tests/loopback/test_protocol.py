"""Two sides that differ: in the protocol number, in a package or file that one lacks, in source, in columns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2prl.core import messages as m
from p2prl.net.sockets import Limits, Network
from p2prl.packages import install_command
from p2prl.wire import frames
from tests import kit
from tests.conftest import wait_until

#: A package of its own, as pip would have installed it; only the host and some joiners have it on their path.
_PACKAGE = {
    "moonlander/__init__.py": """
from gymnasium.envs.registration import register
from p2prl_envs.chain import Chain
class Moonlander(Chain):
    pass
register("Moonlander-v0", entry_point="moonlander:Moonlander")
""",
    "moonlander_gym-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: moonlander-gym\nVersion: 1.2\n",
    "moonlander_gym-1.2.dist-info/top_level.txt": "moonlander\n",
    "moonlander_gym-1.2.dist-info/RECORD": "moonlander/__init__.py,,\nmoonlander_gym-1.2.dist-info/METADATA,,\n",
}


class Host:
    """One host for all tests of this file: its agent is a file, its environment a package that not all have."""

    def __init__(self, folder: Path, base: int, program: kit.Program, extra: dict[str, str]) -> None:
        self.folder, self.base, self.program, self.extra = folder, base, program, extra

    def join(self, name: str, *flags: str, with_package: bool = True) -> kit.Program:
        env = self.extra if with_package else None
        return kit.join(
            self.folder, *flags, name=name, target=f"127.0.0.1:{self.base}", cwd=self.folder, env=env
        )

    def copy(self, name: str, old: str = "", new: str = "") -> str:
        """The agent's file, changed, as a joiner would name it."""
        text = (kit.SAMPLES / "idle.py").read_text()
        assert old in text
        path = self.folder / f"{name}.py"
        path.write_text(text.replace(old, new, 1) if old else text)
        return f"{path}:Idle"


def peer_version(base: int) -> int:
    """The run's weights version: not below 0 once the trainer has started."""
    with kit.Peer(base) as peer:
        return peer.status().weights_version


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder, base = tmp_path_factory.mktemp("protocol"), kit.free_base()
    for name, text in _PACKAGE.items():
        path = folder / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # The host has the agent under a name that no joiner has.
    own = folder / "host-only" / "agent.py"
    own.parent.mkdir()
    own.write_text((kit.SAMPLES / "idle.py").read_text())
    extra = {"PYTHONPATH": str(folder / "site")}
    flags = ("--env", "moonlander:Moonlander-v0", "--agent", "agent.py:Idle", "--players", "0")
    with kit.host(folder, *flags, name=f"p{base}", port=base, cwd=own.parent, env=extra) as program:
        program.wait_for("started")
        wait_until(lambda: peer_version(base) >= 0, 60)
        own.unlink()  # the trainer has it; for joiners it is a file on another machine
        yield Host(folder, base, program, extra)


# --- protocol numbers


def test_the_host_refuses_another_protocol_and_says_which_side_to_upgrade(host: Host) -> None:
    with kit.Peer(host.base, 1, curve=False) as stranger, kit.Peer(host.base) as peer:
        stranger.say(m.EnrolAsk(protocol=999, version="9.9", node_key=""))
        received = stranger.hear()
        assert received is not None
        answer = frames.decode_enrol(received.frames[0])
        assert isinstance(answer, m.Refusal)
        assert answer.reason == "protocol"
        assert "upgrade p2prl on the host" in answer.text
        assert "999" in host.program.wait_for_line("refused a node with p2prl 9.9")
        for protocol, side in ((999, "on the host"), (0, "on this node")):
            hello = m.Hello(protocol=protocol, version="9.9", role="member", name="other", boot_id="b")
            assert side in peer.ask(hello, m.Refusal).text
        assert "other" in host.program.wait_for_line("refused other with p2prl 9.9")
        status = peer.status()
        assert status.refused_frames["protocol"] >= 3
        assert status.nodes == []


def test_a_joiner_of_another_protocol_number_ends_with_5(tmp_path: Path) -> None:
    refusal = m.Refusal(
        reason="protocol", text="upgrade p2prl on this node to 9.9 or later", protocol=m.PROTOCOL + 1
    )
    card = m.EnrolCard(
        protocol=m.PROTOCOL + 1, version="9.9", server_key="", run_id="r", host_name="h", boot_id="b", term=1,
        base_port=1, env="e", agent="a",
    )  # fmt: skip
    for index, (answer, said) in enumerate(
        ((refusal, "to 9.9 or later"), (card, f"speaks protocol {m.PROTOCOL + 1}"))
    ):
        with fake_host(answer) as base:
            done = kit.run(tmp_path, "join", f"127.0.0.1:{base}", name=f"j{index}")
        assert done.returncode == 5
        assert said in done.stderr
        assert "upgrade p2prl on this" in done.stderr


@contextmanager
def fake_host(answer: m.Message) -> Iterator[int]:
    """Something that answers everything on its enrol socket with one message; gives its base port."""
    base, over = kit.free_base(), threading.Event()
    network = Network()
    socket = network.server("router", [f"tcp://127.0.0.1:{base + 1}"], None, Limits())

    def serve() -> None:
        while not over.is_set():
            if socket.wait(0.05) and (received := socket.receive()) is not None:
                socket.send([frames.encode(answer)], received.peer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield base
    finally:
        over.set()
        thread.join()
        network.close()


# --- what one side lacks


def faults(host: Host, name: str) -> list[str]:
    """What the host's status tells of a node."""
    with kit.Peer(host.base) as peer:
        return [fault for node in peer.status().nodes if node.name == name for fault in node.faults]


def test_a_missing_package_is_named_on_both_sides(host: Host) -> None:
    agent = host.copy("plain")
    with host.join("poor", "--agent", agent, with_package=False) as joiner:
        assert joiner.wait(20) == 1
        told = joiner.wait_for_line("pip install")
    wanted = f"moonlander:Moonlander-v0 needs a package that is missing here: {install_command('moonlander-gym==1.2')}"
    assert wanted in told
    assert wanted in host.program.wait_for_line("poor: missing package")
    assert any(wanted in fault for fault in faults(host, "poor"))


def test_a_joiner_brings_its_own_copy_of_the_agents_file(host: Host) -> None:
    with host.join("twin", "--agent", host.copy("twin")) as joiner, kit.Peer(host.base) as peer:
        joiner.wait_for("progress", lambda e: e["steps"] > 0)
        assert joiner.end() == 0
        # It left in the middle of its work, and yet both sides know of each bundle what became of it.
        left = joiner.last("left")
        assert left is not None
        books = left["bundles"]
        assert books["produced"] == books["stored"] > 0
        [node] = [node for node in peer.status().nodes if node.name == "twin"]
        assert node.state == "gone"
        assert node.bundles.produced == node.bundles.stored == books["stored"]
    assert "differs" not in joiner.stderr
    assert faults(host, "twin") == []


def test_a_joiner_without_the_agents_file_is_told_what_to_do(host: Host) -> None:
    with host.join("bare") as joiner:
        assert joiner.wait(20) == 1
        told = joiner.wait_for_line(r"the host's agent is a file, .*agent\.py:Idle")
    assert "p2prl join --agent FILE:CLASS" in told
    assert "agent.py:Idle" in host.program.wait_for_line("bare: agent")
    with host.join("typo", "--agent", "nowhere.py:Idle") as joiner:
        assert joiner.wait(20) == 2
        assert joiner.wait_for_line("there is no file nowhere.py")


def test_another_source_is_said_on_both_sides(host: Host) -> None:
    agent = host.copy("edited", "0 or 1 per slot.", "0 or 1 per slot; edited.")
    with host.join("edited", "--agent", agent) as joiner:
        assert "agent.py:Idle" in joiner.wait_for_line("differs from the host's")
        joiner.wait_for("progress", lambda e: e["steps"] > 0)
        assert "agent.py:Idle" in host.program.wait_for_line("edited: warning: the source of")
        assert joiner.end() == 0


def test_other_columns_are_refused(host: Host) -> None:
    agent = host.copy("wide", "        return {}\n", '        return {"value": Field("float32")}\n')
    with host.join("wide", "--agent", agent) as joiner:
        assert joiner.wait(20) == 1
        told = joiner.wait_for_line("differs from the host's")
    assert "other fields (value); install what the host has" in told
    assert "moonlander-gym==1.2" in told
    assert "other fields (value)" in host.program.wait_for_line("wide: schema")
