"""TOML, presets and `key=value`: what goes in comes out; a mistake is named with the nearest right one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.config import AgentConfig, EnvConfig, Experiment, LimitsConfig, ReplayConfig, StopConfig
from p2prl.errors import UsageError
from p2prl.settings import (
    dump_experiment,
    find_experiment,
    latest_run,
    load_experiment,
    overlay,
    parse_experiment,
    parse_value,
    preset_names,
    with_agent,
    with_env,
)

BASE = Experiment()

_words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
_values = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), _words)
_tables = st.dictionaries(_words, st.one_of(_values, st.lists(_values, max_size=3)), max_size=4)
_experiments = st.builds(
    Experiment,
    name=_words,
    seed=st.integers(0, 2**32 - 1),
    env=st.builds(EnvConfig, id=_words, args=_tables),
    agent=st.builds(AgentConfig, name=_words, settings=_tables),
    replay=st.builds(
        ReplayConfig, kind=st.sampled_from(["queue", "uniform", None]), batch=st.integers(1, 99) | st.none()
    ),
    limits=st.builds(LimitsConfig, node_bytes_per_s=st.integers(0, 1 << 40)),
    stop=st.builds(StopConfig, mean_return=st.floats(-1e9, 1e9) | st.none()),
)


@given(_experiments)
def test_what_is_written_is_read_back(experiment: Experiment) -> None:
    assert parse_experiment(dump_experiment(experiment), "test") == experiment


def test_a_setting_called_name_survives() -> None:
    experiment = msgspec.structs.replace(
        BASE, agent=AgentConfig("mine", {"name": "x", "settings": 1, "lr": 0.5})
    )
    assert parse_experiment(dump_experiment(experiment), "test") == experiment


def test_agent_settings_stand_beside_the_name_or_in_a_table() -> None:
    beside = parse_experiment('[agent]\nname = "dqn"\nlr = 0.5\n', "test")
    table = parse_experiment('[agent]\nname = "dqn"\n[agent.settings]\nlr = 0.5\n', "test")
    assert beside == table
    assert beside.agent == AgentConfig("dqn", {"lr": 0.5})


@pytest.mark.parametrize("name", preset_names())
def test_each_preset_loads_under_its_own_name_and_says_what_it_is(name: str) -> None:
    from p2prl.settings import preset_text

    assert find_experiment(name).name == name
    assert preset_text(name).startswith("# ")


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("seed=7", ("seed",), 7),
        ("shards=3", ("shards",), 3),
        ("agent.lr=1e-3", ("agent", "settings", "lr"), 1e-3),
        ("agent.settings.lr=2", ("agent", "settings", "lr"), 2),
        ("agent.double=True", ("agent", "settings", "double"), True),
        ("agent.hidden=[64, 64]", ("agent", "settings", "hidden"), [64, 64]),
        ("agent.name=cem", ("agent", "name"), "cem"),
        ("env.id=Acrobot-v1", ("env", "id"), "Acrobot-v1"),
        ("env.args.map=8x8", ("env", "args", "map"), "8x8"),
        ("env.args.a.b=1", ("env", "args", "a", "b"), 1),
        ("replay.batch=32", ("replay", "batch"), 32),
        ("replay.capacity_bytes=64MB", ("replay", "capacity_bytes"), 64_000_000),
        ("replay.fsync_interval_s=0", ("replay", "fsync_interval_s"), 0.0),
        ("limits.node_bytes_per_s=25MB", ("limits", "node_bytes_per_s"), 25_000_000),
        ("limits.node_bytes_per_s=0", ("limits", "node_bytes_per_s"), 0),
        ("limits.node_bundles_per_s=1e4", ("limits", "node_bundles_per_s"), 10_000),
        ("replay.capacity_bytes=1.5 MiB", ("replay", "capacity_bytes"), 1_572_864),
        ("play.when_full=drop_oldest", ("play", "when_full"), "drop_oldest"),
        ("train.publish_interval_s=1", ("train", "publish_interval_s"), 1.0),
        ("stop.steps=1e6", ("stop", "steps"), 1_000_000),
        ('name="a=b"', ("name",), "a=b"),
    ],
)
def test_set_changes_one_value_and_nothing_else(
    assignment: str, path: tuple[str, ...], value: object
) -> None:
    changed = msgspec.to_builtins(overlay(BASE, [assignment]))
    expected = msgspec.to_builtins(BASE)
    place = expected
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    assert changed == expected


def test_the_last_assignment_wins_and_replaces_what_the_file_says() -> None:
    base = msgspec.structs.replace(BASE, agent=AgentConfig("dqn", {"name": "odd", "lr": 1}))
    assert overlay(base, ["agent.lr=2", "agent.lr=3"]).agent.settings == {"name": "odd", "lr": 3}


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("batch=3", "did you mean replay.batch?"),
        ("replay.batchs=3", "did you mean replay.batch?"),
        ("lr=3", "did you mean agent.lr?"),
        ("agnt.lr=3", "did you mean agent?"),
        ("env.gravity=9.8", "env.args.gravity"),
        ("nothing.like.it=1", "valid: name, seed"),
        ("seed.x=1", "unknown key 'seed.x'"),
        ("play.when_full=drop", "must be one of wait, drop_oldest"),
        ("replay.capacity_bytes=64XB", "64MB"),
        ("shards=0", "expected a whole number of at least 1"),
        ("shards=1000", "expected a whole number of at most 32"),
        ("shards=two", "expected a whole number, as in 3"),
        ("seed=-1", "expected a whole number of at least 0"),
        ("stop.steps=2.5", "expected a whole number, as in 3"),
        ("limits.node_bundles_per_s=-1", "expected a whole number of at least 0"),
        ("limits.node_bytes_per_s=fast", "64MB"),
        ("node_bundles_per_s=1", "did you mean limits.node_bundles_per_s?"),
        ("replay.fsync_interval_s=-1", "expected a number of at least 0"),
        ("stop.mean_return=nan", "must be finite"),
        ("agent=dqn", "agent.name"),
        ("agent.settings=3", "table"),
        ("env.args=3", "env.args"),
        ("stop.time_s=2m", "stop.time_s = '2m': expected a number, as in 0.5"),
        ("env.args.x", "key=value, as in seed=7"),
        ("=3", "key=value"),
        ("seed=", "key=value"),
        ("..=1", "unknown key"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_that_helps(assignment: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        overlay(BASE, [assignment], settings=["lr"])
    text = str(caught.value)
    assert told in text
    assert "\n" not in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["1\nseed = 2", "[1,", '"open', "2024-13-99", "a b c"])
def test_what_is_not_one_toml_value_is_a_plain_string(text: str) -> None:
    assert parse_value(text) == text


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for text, told in (
        ("[env\n", "is not TOML"),
        ("[replay]\nbach = 3\n", "replay.batch"),
        ("env = 3\n", "env.id"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"mine\.toml") as caught:
            load_experiment(file)
        assert told in str(caught.value)
    with pytest.raises(UsageError, match="cannot read"):
        load_experiment(tmp_path / "none.toml")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        load_experiment(file)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean cartpole"):
        find_experiment("cartpol")


def test_an_agents_relative_path_is_taken_from_the_file_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[agent]\nname = "agents/my.py:Mine"\nlr = 1\n')
    agent = load_experiment(file).agent
    assert agent == AgentConfig(f"{tmp_path.as_posix()}/agents/my.py:Mine", {"lr": 1})


def test_another_environment_or_agent_drops_what_was_chosen_for_the_old_one() -> None:
    base = Experiment(
        name="mine",
        env=EnvConfig("A-v1", {"x": 1}),
        agent=AgentConfig("dqn", {"lr": 1}),
        replay=ReplayConfig(batch=3, fsync_interval_s=0.0),
    )
    assert with_env(base, "A-v1") is base
    assert with_agent(base, "dqn") is base
    other = with_env(base, "ALE/Pong-v5")
    assert (other.env, other.name, other.agent) == (EnvConfig("ALE/Pong-v5"), "ale-pong-v5", base.agent)
    other = with_agent(base, "path/to/my.py:Mine")
    assert (other.agent, other.replay, other.env) == (
        AgentConfig(f"{Path.cwd().as_posix()}/path/to/my.py:Mine"),
        ReplayConfig(fsync_interval_s=0.0),  # of the host's disk
        base.env,
    )
    assert other.name == "mine-mine"


def test_resume_means_the_run_that_was_started_last(tmp_path: Path) -> None:
    for age, (folder, name) in enumerate([("new", "a"), ("old", "a"), ("other", "b")]):
        file = tmp_path / folder / "experiment.toml"
        file.parent.mkdir()
        file.write_text(f'name = "{name}"\n')
        os.utime(file, (1000 - age, 1000 - age))
    assert latest_run(tmp_path) == tmp_path / "new"
    assert latest_run(tmp_path, "b") == tmp_path / "other"
    assert latest_run(tmp_path / "old") == tmp_path / "old"
    # The newest failed at once, and left nothing to evaluate or to go on with.
    done = tmp_path / "old" / "checkpoints" / "0000000001-v1" / "DONE"
    done.parent.mkdir(parents=True)
    done.touch()
    assert latest_run(tmp_path) == tmp_path / "old"
    with pytest.raises(UsageError, match=r"does not hold a run of 'c'"):
        latest_run(tmp_path, "c")
    with pytest.raises(UsageError, match="does not hold"):
        latest_run(tmp_path / "missing")


def test_what_cannot_be_sent_to_joiners_is_told_at_once() -> None:
    with pytest.raises(UsageError, match="sent to others"):
        overlay(Experiment(), [f"env.args.x={'9' * 30}"])


def test_a_file_of_windows_editors_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\n', encoding="utf-8-sig")
    assert load_experiment(file).name == "mine"
