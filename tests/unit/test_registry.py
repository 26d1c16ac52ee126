"""p2prl.registry: names, files, settings, and what to say when something is not there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from p2prl import registry
from p2prl.cli.experiments import _environments, _presets
from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import MissingPackage, P2prlError, UsageError
from p2prl.packages import install_command

CARTPOLE = EnvSpec(
    "CartPole-v1",
    Leaf("box", "float32", (4,), (-1.0,), (1.0,)),
    Leaf("discrete", "uint8", (), (0.0,), (1.0,)),
)

AGENT = """
from __future__ import annotations
import msgspec
import numpy as np
from p2prl_agents.dqn import DQN

class Mine(DQN):
    '''My own.'''

class Helper:
    pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution called tinybots that announces agents and environments, as pip would leave it."""
    info = tmp_path / "site" / "tinybots-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinybots\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[p2prl.agents]\ntinybot = tinybots.agent:Mine\nlost = tinybots.agent:Nobody\n"
        "needy = tinybots.needy:Mine\nhalf = tinybots.agent:Helper\n"
        "[p2prl.envs]\ntinyworld = tinybots.world:make\n"
    )
    package = tmp_path / "site" / "tinybots"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "agent.py").write_text(AGENT)
    (package / "needy.py").write_text("import no_such_package_here.deep\n")
    (package / "world.py").write_text(
        "from p2prl_envs.chain import make_chain\n\ndef make(length=3):\n    return make_chain(length=length)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package


@pytest.fixture(autouse=True)
def _forget_modules() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("tinybots", "p2prl_file_")):
            del sys.modules[name]


def test_entry_points_of_other_packages_are_found(installed: Path) -> None:
    assert "tinybot" in registry.agent_names()
    assert "tinyworld" in registry.env_names()
    assert "CartPole-v1" in registry.env_names()
    assert registry.resolve_agent("tinybot").__name__ == "Mine"
    factory = registry.make_env_factory("tinyworld", {"length": 7})
    env = factory()
    assert env.observation_space == gym.spaces.Discrete(7)
    assert registry.provider(factory.source) == "tinybots==1.2"
    assert registry.provider(registry.resolve_agent("tinybot")) == "tinybots==1.2"


def test_gymnasium_ids_with_and_without_version_or_module() -> None:
    for name in ("CartPole-v1", "CartPole", "gymnasium.envs.classic_control:CartPole-v1"):
        factory = registry.make_env_factory(name, {})
        env = factory()
        assert env.spec is not None
        assert env.spec.id == "CartPole-v1"
        env.close()
        assert registry.provider(factory.source) == f"gymnasium=={gym.__version__}"
    assert registry.make_env_factory("CartPole-v1", {})(render_mode="rgb_array").render_mode == "rgb_array"


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("tinywrld", "tinyworld"),
        ("Acrobt-v1", "Acrobot-v1"),
    ],
)
def test_an_unknown_environment_names_the_nearest(installed: Path, asked: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.make_env_factory(asked, {})
    assert nearest in str(caught.value)
    assert "CartPole-v0" not in str(caught.value), "only the newest version is of use"
    assert "\n" not in str(caught.value)


class Lacking(MetaPathFinder):
    """An interpreter without the packages whose top-level modules these are."""

    def __init__(self, *modules: str) -> None:
        self.modules = modules

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] in self.modules:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install p2prl` leaves it: no package that only an environment's extra brings."""
    lacking = Lacking("Box2D", "minigrid", "mobile_env", "torch", "pygame", "ale_py")
    monkeypatch.setattr(sys, "meta_path", [lacking, *sys.meta_path])
    ours = ("gymnasium.envs.box2d", "p2prl_envs.minigrid", "p2prl_envs.mobile")
    for name in list(sys.modules):
        if name.startswith(ours) or name.partition(".")[0] in lacking.modules:
            monkeypatch.delitem(sys.modules, name)
    for env_id in [name for name in gym.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gym.registry, env_id)


@pytest.mark.parametrize(
    ("env_id", "args", "package"),
    [
        ("ALE/Breakout-v5", {}, "ale-py"),
        ("LunarLander-v3", {}, "p2prl[box2d]"),
        ("LunarLander-v3", {"continuous": True}, "p2prl[box2d]"),
        ("realtime", {"env": "LunarLander-v3"}, "p2prl[box2d]"),
        ("minigrid", {}, "p2prl[minigrid]"),
        ("mobile", {"size": "large"}, "p2prl[mobile]"),
    ],
)
@pytest.mark.usefixtures("without_extras")
def test_a_missing_package_is_named_with_its_pip_command(
    env_id: str, args: dict[str, Any], package: str
) -> None:
    with pytest.raises(MissingPackage) as caught:
        registry.make_env_factory(env_id, args, provided_by="p2prl==0.1.0" if package[0] == "p" else "")()
    assert caught.value.package == package
    command = install_command(package)
    assert str(caught.value) == f"{env_id} needs a package that is missing here: {command}"
    assert shlex.split(command) == [sys.executable, "-m", "pip", "install", package]


@pytest.mark.usefixtures("without_extras")
def test_presets_that_lack_a_package_are_listed_with_it() -> None:
    shown = "\n".join([*_presets(500), *_environments(500)])
    for preset, package in (
        ("lunarlander", "box2d"),
        ("lunarlander-continuous", "box2d"),
        ("minigrid-memory", "minigrid"),
    ):
        assert re.search(
            rf"^  {preset} .*\n +not usable here: .*pip install \"p2prl\[{package}\]\"$", shown, re.M
        )
    for env, package in (("minigrid", "minigrid"), ("mobile", "mobile")):
        assert re.search(rf"^  {env} +not usable here: .*pip install \"p2prl\[{package}\]\"$", shown, re.M)
    assert re.search(r"^  acrobot .*\n  cartpole ", shown, re.M)


@pytest.mark.parametrize(
    ("env_id", "flags"),
    [
        ("MiniGrid-MemoryS7-v0", "--env minigrid --set env.args.env=MiniGrid-MemoryS7-v0"),
        ("mobile-medium-central-v0", "--env mobile --set env.args.size=medium"),
    ],
)
def test_ids_that_we_wrap_are_told_as_what(env_id: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gym.registry, env_id, raising=False)
    with pytest.raises(UsageError, match=f"{env_id} is to be had as {flags}"):
        registry.make_env_factory(env_id, {})


def test_a_world_of_minigrid_that_there_is_not_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean MiniGrid-MemoryS7-v0"):
        registry.make_env_factory("minigrid", {"env": "MiniGrid-MemroyS7-v0"})()


def test_environments_say_nothing_on_stdout() -> None:
    """With --json it is JSON's alone, and pygame greets."""
    code = (
        "from p2prl.registry import make_env_factory as make\n"
        "for name in ('minigrid', 'mobile', 'LunarLander-v3'):\n"
        "    env = make(name, {})('rgb_array'); env.reset(seed=1); env.step(env.action_space.sample()); env.render()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""


def test_nobody_is_told_to_install_a_guessed_name_from_the_internet() -> None:
    with pytest.raises(MissingPackage, match="no Python module no_such_package_here here") as caught:
        registry.make_env_factory("no_such_package_here:World-v0", {})
    assert "pip install" not in str(caught.value)
    assert caught.value.exit_code == UsageError.exit_code, "as any other name that is not there"
    with pytest.raises(UsageError, match="is no Python module"):
        registry.make_env_factory("./my-file.py:World-v0", {})


@pytest.mark.parametrize(
    ("env_id", "where"),
    [
        ("slowgame.py:Slow", ""),
        ("slowgame.py", ""),
        ("file:slowgame.py", ""),
        ("games/slowgame.py:Slow", ", with p2prl started in games"),
    ],
)
def test_a_file_for_an_environment_is_told_how_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, where: str
) -> None:
    (tmp_path / "slowgame.py").write_text("raise SystemExit('this was run')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        registry.make_env_factory(env_id, {})
    said = f"an environment is not named by its file: write slowgame:ID{where}; ID is what slowgame.py registers "
    assert str(caught.value).startswith(said)


def test_code_that_ends_the_process_when_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("leavinggame", "leavingagent"):
        (tmp_path / f"{name}.py").write_text("import sys\n\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"SystemExit: 3 \(leavinggame.py line 3\)"):
        registry.make_env_factory("leavinggame:World-v0", {})
    with pytest.raises(UsageError, match=r"SystemExit: 3 \(leavingagent.py line 3\)"):
        registry.resolve_agent("leavingagent.py:Agent")


def test_an_environment_beside_us_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tinybots_beside.py").write_text(
        "import gymnasium\nfrom p2prl_envs.chain import make_chain\n"
        "gymnasium.register('Beside-v0', entry_point=lambda **kw: make_chain())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    env = registry.make_env_factory("tinybots_beside:Beside-v0", {})()
    assert env.observation_space is not None
    env.close()


def test_what_the_host_has_is_named_to_a_joiner_that_lacks_it() -> None:
    with pytest.raises(MissingPackage, match="tinyzoo==3") as caught:
        registry.make_env_factory("Tinyzoo/Cat-v0", {}, provided_by="tinyzoo==3")
    assert caught.value.package == "tinyzoo==3"
    with pytest.raises(MissingPackage, match="tinyzoo==3"):
        registry.make_env_factory("tinycat", {}, provided_by="tinyzoo==3")
    with pytest.raises(MissingPackage, match="tinyzoo==3"):
        registry.resolve_agent("catbot", provided_by="tinyzoo==3")


def test_an_unknown_namespace_is_said() -> None:
    with pytest.raises(UsageError, match="Qqzzx"):
        registry.make_env_factory("Qqzzx/Wwyy-v0", {})


@pytest.mark.parametrize("args", [{"speed": 3}, {"length": "long"}])
def test_bad_arguments_of_an_environment(installed: Path, args: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="tinyworld cannot be made with"):
        registry.make_env_factory("tinyworld", args)()


def test_an_environment_that_cannot_render_says_so(installed: Path) -> None:
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        registry.make_env_factory("tinyworld", {})(render_mode="rgb_array")


def test_an_agent_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my_agent.py"
    path.write_text(AGENT)
    cls = registry.resolve_agent(f"{path}:Mine")
    assert cls.__doc__ == "My own."
    registry.make_agent(cls, CARTPOLE, {"n_step": 2})
    monkeypatch.chdir(tmp_path)
    assert registry.resolve_agent("my_agent.py:Mine").__name__ == "Mine"
    with pytest.raises(UsageError, match=r"no class 'Yours'; it has Mine$"):
        registry.resolve_agent(f"{path}:Yours")
    (tmp_path / "no_agent.py").write_text("class B: pass\nclass A: pass\n")
    with pytest.raises(UsageError, match=r"no class 'Yours'; it has A, B$"):
        registry.resolve_agent("no_agent.py:Yours")
    (tmp_path / "empty.py").write_text("from pathlib import Path\n")
    with pytest.raises(UsageError, match=r"no class 'Yours'; it has no classes$"):
        registry.resolve_agent("empty.py:Yours")
    with pytest.raises(UsageError, match="Helper is no agent: it lacks Settings"):
        registry.resolve_agent(f"{path}:Helper")
    with pytest.raises(UsageError, match="there is no file"):
        registry.resolve_agent(f"{tmp_path / 'other.py'}:Mine")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def __init__(self, env): pass",
            r"an agent is made as Mine\(env, settings\), and its __init__ takes \(env\)",
        ),
        ("pass", r"made as Mine\(env, settings\), and its __init__ takes \(\)"),
        (
            "def __init__(self, env, settings): env.no",
            r"Mine cannot be made: AttributeError.* \(mine.py line 10\)",
        ),
    ],
)
def test_a_constructor_that_breaks_the_contract_is_named(tmp_path: Path, code: str, said: str) -> None:
    path = tmp_path / "mine.py"
    parts = "\n".join(f"    def {part}(self): pass" for part in ("fields", "replay", "actor", "learner"))
    path.write_text(
        f"import msgspec\nclass Mine:\n    ladder = 1\n{parts}\n"
        f"    class Settings(msgspec.Struct): pass\n\n    {code}\n"
    )
    box = Leaf("box", "float32", (), (0.0,), (1.0,))
    with pytest.raises(UsageError, match=said):
        registry.make_agent(registry.resolve_agent(f"{path}:Mine"), EnvSpec("T", box, box), {})


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("class Mine(:\n")
    with pytest.raises(UsageError, match="cannot be imported: SyntaxError"):
        registry.resolve_agent(f"{path}:Mine")
    path.write_text("import no_such_package_here\n")
    with pytest.raises(MissingPackage, match="pip install"):
        registry.resolve_agent(f"{path}:Mine")
    assert not [name for name in sys.modules if name.startswith("p2prl_file_broken")]


def test_unknown_agents(installed: Path) -> None:
    with pytest.raises(UsageError, match="did you mean tinybot"):
        registry.resolve_agent("tinybott")
    with pytest.raises(MissingPackage, match="no_such_package_here"):
        registry.resolve_agent("needy")
    with pytest.raises(P2prlError, match=r"tinybots.agent:Nobody, which does not exist"):
        registry.resolve_agent("lost")
    with pytest.raises(UsageError, match="half is no agent"):
        registry.resolve_agent("half")


def test_what_to_type_instead_is_said_as_a_sentence() -> None:
    for name, told in (
        ("dqm", r"^no agent 'dqm'; did you mean dqn\? \(one of your own: path/to/file.py:Class\)$"),
        ("mine.py", r"^agent 'mine.py' is a file: say which class in it, as in mine.py:Class$"),
    ):
        with pytest.raises(UsageError, match=told):
            registry.resolve_agent(name)


def test_no_agents_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entry_points", lambda group: {})
    with pytest.raises(UsageError, match="no agents are installed at all"):
        registry.resolve_agent("dqn")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"gama": 0.9}, "Mine has no setting 'gama'; did you mean gamma"),
        ({"zzzz": 1}, "there are atoms, batch"),
        ({"n_step": "three"}, "Mine's setting 'n_step': expected int, got str"),
        ({"n_step": 0}, "Mine's setting 'n_step': expected int >= 1"),
        ({"hidden": [64, "x"]}, "Mine's setting 'hidden[1]': expected int, got str"),
    ],
)
def test_bad_settings_are_one_line(installed: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.make_agent(registry.resolve_agent("tinybot"), CARTPOLE, settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_are_converted_from_toml_values(installed: Path) -> None:
    agent: Any = registry.make_agent(
        registry.resolve_agent("tinybot"), CARTPOLE, {"hidden": [32, 32], "gamma": 1, "double": False}
    )
    assert agent.settings.hidden == (32, 32)
    assert agent.settings.gamma == 1.0
    assert agent.settings.double is False


def test_source_hash_changes_with_the_text_and_not_with_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    hashes = []
    for text in (AGENT, AGENT.replace("\n", "\r\n"), AGENT + "\nx = 1\n"):
        path.write_bytes(text.encode())
        hashes.append(registry.source_hash(registry.resolve_agent(f"{path}:Mine")))
    assert hashes[0] == hashes[1] != hashes[2]
    assert all(len(value) == 16 for value in hashes)
    assert registry.source_hash(len) == ""
    assert registry.source_hash(gym.make("CartPole-v1")) != ""
