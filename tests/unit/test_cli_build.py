"""From flags to an experiment, and the shapes that `ls` and `eval` print."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from p2prl.cli.build import ExperimentFlags, check_installed, effective_experiment, resumed_experiment
from p2prl.cli.context import node_name
from p2prl.cli.evaluate import result_lines, result_object
from p2prl.cli.ls import host_object, hosts_view
from p2prl.cli.output import json_line
from p2prl.config import AgentConfig, EnvConfig, Experiment, ReplayConfig, StopConfig
from p2prl.core.schema import check_schema
from p2prl.errors import UsageError
from p2prl.learn.spaces import agent_schema, env_spec
from p2prl.net.cards import FoundHost
from p2prl.nodes.evaluate import EvalResult
from p2prl.nodes.prepare import prepare
from p2prl.registry import make_agent, make_env_factory, resolve_agent
from p2prl.settings import dump_experiment, find_experiment, overlay, preset_names
from tests.unit.cli_samples import HOSTILE
from tests.unit.test_cli_view import drawn


def test_no_flags_are_the_cartpole_preset() -> None:
    assert effective_experiment(ExperimentFlags()) == find_experiment("cartpole")


def test_flags_lie_over_set_which_lies_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('seed = 1\nshards = 1\n[agent]\nname = "dqn"\ngamma = 0.5\n[stop]\nsteps = 5\n')
    flags = ExperimentFlags(
        experiment=str(file),
        assignments=["seed=2", "shards=2", "agent.gamma=0.9"],
        seed=3,
        envs=4,
        gpu=True,
        stop_return=475.0,
        stop_time=1.5,
    )
    found = effective_experiment(flags)
    assert (found.seed, found.shards, found.play.envs, found.train.device) == (3, 2, 4, "gpu")
    assert found.agent == AgentConfig("dqn", {"gamma": 0.9})
    assert (found.stop.steps, found.stop.mean_return, found.stop.time_s) == (5, 475.0, 1.5)


def test_set_reaches_the_agent_and_environment_that_the_flags_name() -> None:
    flags = ExperimentFlags(env="chain", agent="cem", assignments=["env.args.length=7", "agent.population=9"])
    found = effective_experiment(flags)
    assert (found.env, found.agent) == (
        EnvConfig("chain", {"length": 7}),
        AgentConfig("cem", {"population": 9}),
    )
    assert found.name == "chain-cem"


def test_another_environment_alone_does_not_take_the_presets_settings(tmp_path: Path) -> None:
    assert effective_experiment(ExperimentFlags(env="Acrobot-v1")).agent == Experiment().agent
    file = tmp_path / "mine.toml"
    file.write_text("[replay]\nbatch = 7\n[env]\nid = 'A-v1'\n[env.args]\nx = 1\n")
    found = effective_experiment(ExperimentFlags(experiment=str(file), env="Acrobot-v1"))
    assert (found.replay, found.env) == (ReplayConfig(batch=7), EnvConfig("Acrobot-v1"))


@pytest.mark.parametrize(
    ("device", "gpu", "chosen"), [("cuda", True, "cuda"), ("cpu", False, "cpu"), (None, False, "auto")]
)
def test_gpu_and_device_agree(device: str | None, gpu: bool, chosen: str) -> None:
    assert effective_experiment(ExperimentFlags(device=device, gpu=gpu)).train.device == chosen


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_gpu_and_device_contradict(device: str) -> None:
    with pytest.raises(UsageError, match="contradict"):
        effective_experiment(ExperimentFlags(device=device, gpu=True))


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        (AgentConfig("dqn", {"gama": 0.9}), "did you mean agent.gamma"),
        (AgentConfig("dqn", {"gamma": 2}), "agent.gamma = 2"),
        (AgentConfig("dqn", {"hidden": [64, "x"]}), "agent.hidden"),
        (AgentConfig("dqnn"), "dqn"),
    ],
)
def test_an_agents_settings_are_judged_first(agent: AgentConfig, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_installed(Experiment(agent=agent))


def test_an_agents_numbers_are_written_as_all_others_are() -> None:
    given = ["agent.capacity_bytes=1GB", "agent.min_ticks=1e3", "agent.gamma=1", "agent.hidden=[8]"]
    settings = check_installed(overlay(find_experiment("cartpole"), given)).agent.settings
    assert settings["capacity_bytes"] == 1_000_000_000
    assert (settings["min_ticks"], settings["gamma"], settings["hidden"]) == (1000, 1, [8])
    assert all(type(settings[key]) is int for key in ("capacity_bytes", "min_ticks"))
    with pytest.raises(UsageError, match="as in 64000000, 64MB or 64MiB"):
        check_installed(overlay(find_experiment("cartpole"), ["agent.capacity_bytes=lots"]))


def test_valid_keys_are_named_once() -> None:
    with pytest.raises(UsageError) as told:
        overlay(find_experiment("cartpole"), ["play.zzz=1"])
    for key in ("play.envs", "play.window_bytes"):
        assert str(told.value).count(key) == 1


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_fits_its_agent_and_environment(name: str) -> None:
    experiment = find_experiment(name)
    check_installed(experiment)
    with make_env_factory(experiment.env.id, experiment.env.args)() as env:
        spec = env_spec(env, experiment.env.id)
    agent = make_agent(resolve_agent(experiment.agent.name), spec, experiment.agent.settings)
    assert check_schema(agent_schema(spec, agent, agent.replay().ticks)) == ""


def test_resume_takes_the_runs_own_experiment(tmp_path: Path) -> None:
    run = tmp_path / "cartpole-1"
    run.mkdir()
    saved = Experiment(seed=9, agent=AgentConfig("dqn", {"gamma": 0.5}))
    (run / "experiment.toml").write_text(dump_experiment(saved), encoding="utf-8")
    assert resumed_experiment(ExperimentFlags(), tmp_path) == (run, None, saved)
    assert resumed_experiment(ExperimentFlags(experiment="cartpole", agent="dqn"), run) == (run, None, saved)
    _, _, found = resumed_experiment(ExperimentFlags(stop_steps=7), tmp_path)
    assert (found.stop.steps, found.agent) == (7, saved.agent)
    ending = msgspec.structs.replace(saved, stop=StopConfig(steps=9, mean_return=475.0))
    (run / "experiment.toml").write_text(dump_experiment(ending), encoding="utf-8")
    assert resumed_experiment(ExperimentFlags(), tmp_path)[2].stop == ending.stop, "not forgotten"
    _, _, found = resumed_experiment(ExperimentFlags(stop_steps=11), tmp_path)
    assert found.stop == StopConfig(steps=11, mean_return=475.0)
    _, _, found = resumed_experiment(ExperimentFlags(no_stop=True, stop_steps=11), tmp_path)
    assert found.stop == StopConfig(steps=11)
    for flags in (ExperimentFlags(env="chain"), ExperimentFlags(agent="cem")):
        with pytest.raises(UsageError, match="was started with"):
            resumed_experiment(flags, tmp_path)
    with pytest.raises(UsageError, match="cannot change that"):
        resumed_experiment(ExperimentFlags(shards=saved.shards + 1), tmp_path)
    with pytest.raises(UsageError, match="does not hold"):
        resumed_experiment(ExperimentFlags(experiment="chain"), tmp_path)


def test_resume_refuses_an_experiment_that_is_not_the_runs(tmp_path: Path) -> None:
    run = tmp_path / "mountaincar-1"
    run.mkdir()
    (run / "experiment.toml").write_text(dump_experiment(find_experiment("mountaincar")), encoding="utf-8")
    assert resumed_experiment(ExperimentFlags(experiment="mountaincar"), run)[0] == run
    checkpoint = run / "checkpoints" / "best"
    checkpoint.mkdir(parents=True)
    for where in (run, checkpoint):
        for flags in (
            ExperimentFlags(experiment="cartpole"),
            ExperimentFlags(experiment="mountaincar", agent="ppo"),
        ):
            with pytest.raises(UsageError, match="mountaincar") as caught:
                resumed_experiment(flags, where)
            assert "\n" not in str(caught.value)
            assert "cartpole" in str(caught.value) or "ppo" in str(caught.value)
    with pytest.raises(UsageError, match=r"--env MountainCar-v0; start a new run for --env CartPole-v1"):
        resumed_experiment(ExperimentFlags(env="CartPole-v1"), run)


def test_the_machines_own_name_is_always_fit_to_advertise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "x" * 80 + ".example")
    assert node_name(None) == "x" * 58
    monkeypatch.setattr("platform.node", lambda: "")
    assert node_name(None) == "node"
    assert node_name("Zoë's") == "Zoë's"


def found_host(name: str) -> FoundHost:
    return FoundHost(
        run_id="a1b2c3d4e5",
        name=name,
        boot_id="b",
        term=2,
        protocol=1,
        fingerprint="f",
        env=name,
        agent="dqn",
        base_port=47800,
        addresses=("192.0.2.1", "2001:db8::1"),
    )


def test_a_found_host_is_one_json_object_and_one_safe_row() -> None:
    value = json.loads(json_line(host_object(found_host("attic"))))
    assert value["addresses"] == ["192.0.2.1", "2001:db8::1"]
    assert value.keys() == set(FoundHost.__dataclass_fields__)
    lines = drawn(hosts_view([found_host("attic"), found_host(HOSTILE)], 160), 160)
    assert len(lines) == 5, "each of two addresses has a line of its own"
    assert lines[1].startswith("attic")
    assert "192.0.2.1" in lines[1]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("width", [32, 45, 60])
def test_where_a_table_of_hosts_has_no_room_what_to_type_is_whole(width: int) -> None:
    lines = drawn(hosts_view([found_host("attic"), found_host(HOSTILE)], width), width)
    assert lines[0] == "attic"
    assert lines[2:4] == ["  192.0.2.1:47800", "  [2001:db8::1]:47800"]
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)


def test_a_score_is_told_with_its_spread_and_source(tmp_path: Path) -> None:
    video = tmp_path / "1.mp4"
    result = EvalResult(
        "attic", 7, "CartPole-v1", "dqn", [10.0, 30.0], [10, 30], [5, 6], 20.0, 12.5, 27.5, 10.0, [video]
    )
    lines = result_lines(result)
    assert lines[0] == "return  20.0   (95 % confidence: 12.5 to 27.5)"
    assert lines[1] == "        std 10.0, min 10.0, max 30.0"
    assert lines[2] == "over    2 episodes of CartPole-v1, 20.0 steps on average"
    assert lines[3] == "by      dqn, weights v7 of attic"
    assert lines[4] == f"video   {video}"
    value = json.loads(json_line(result_object(result)))
    assert (value["mean"], value["episodes"], value["weights_version"]) == (20.0, 2, 7)
    assert (value["mean_low"], value["mean_high"], value["std"]) == (12.5, 27.5, 10.0)
    assert (value["returns"], value["lengths"], value["seeds"]) == ([10.0, 30.0], [10, 30], [5, 6])
    assert value["videos"] == [str(video)]


def test_one_episode_has_no_interval() -> None:
    result = EvalResult("attic", 7, "CartPole-v1", "dqn", [183.0], [183], [5], 183.0, 183.0, 183.0, 0.0)
    assert result_lines(result)[0] == "return  183.0"
    value = json.loads(json_line(result_object(result)))
    assert (value["mean"], value["mean_low"], value["mean_high"]) == (183.0, None, None)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_setting_that_the_agent_has_not_is_told_with_its_file(tmp_path: Path, resumed: bool) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('[agent]\nname = "cem"\nlearning_rte = 1\n')
    with pytest.raises(UsageError) as caught:
        _ = (
            resumed_experiment(ExperimentFlags(), tmp_path)
            if resumed
            else effective_experiment(ExperimentFlags(experiment=str(file)))
        )
    assert str(caught.value).startswith(f"{file}: unknown key 'agent.learning_rte'")
    chosen = effective_experiment(ExperimentFlags(experiment=str(file), agent="es"))
    assert chosen.agent == AgentConfig("es"), "the settings go with the agent that they were for"


@pytest.mark.parametrize(("when_full", "count"), [("wait", 1), ("drop_oldest", 0)])
def test_a_world_that_does_not_wait_is_warned_of(tmp_path: Path, when_full: str, count: int) -> None:
    flags = ExperimentFlags(env="realtime", agent="cem", assignments=[f"play.when_full={when_full}"])
    prepared = prepare(effective_experiment(flags), tmp_path, resume=False)
    assert len(prepared.warnings) == count
    assert all("--set play.when_full=drop_oldest" in text for text in prepared.warnings)
    assert prepared.file.spaces["action"] == "Discrete(2)"
