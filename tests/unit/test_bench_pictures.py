"""Frames for the bench: what half-trained policies did is done again, and told apart from another game."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_parts import half_trained, pictures
from bench_parts.half_trained import LETTERS, MARKED, Marks, Recording
from bench_parts.kinds import Unavailable

from p2prl.config import AgentConfig, EnvConfig, Experiment
from p2prl.learn.spaces import env_spec
from p2prl.nodes import checkpoint
from p2prl.registry import make_agent, resolve_agent
from p2prl.settings import EXPERIMENT_FILE, dump_experiment

#: That half-trained is well above random: how many times its score. Pong's is lost points, and is held apart.
ABOVE = {"Breakout": 3.0, "MsPacman": 2.0, "Seaquest": 3.0}
ROWS, SLOTS = 257, 8


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without frames in it."""
    monkeypatch.setenv("P2PRL_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def atari() -> None:
    pytest.importorskip("ale_py", reason="p2prl[bench]")
    pytest.importorskip("cv2", reason="p2prl[bench]")


# --- what is recorded


def test_each_game_has_all_that_the_bench_asks_for() -> None:
    assert set(half_trained.recordings()) == set(pictures.GAMES)
    for recording in half_trained.recordings().values():
        assert [slot.rows for slot in recording.slots] == [ROWS] * SLOTS
        assert {len(slot.marks) for slot in recording.slots} == {1 + ROWS // MARKED}
        assert len({slot.actions[-64:] for slot in recording.slots}) == SLOTS, "each plays by itself"


def test_it_is_half_trained() -> None:
    told = half_trained.told()["games"]
    for game, times in ABOVE.items():
        assert told[game]["return"] >= times * told[game]["random_return"], game
    assert told["Pong"]["random_return"] + 5 <= told["Pong"]["return"] <= 10, "21 is all that can be won"
    for game in told:
        played = Counter(action for slot in half_trained.recordings()[game].slots for action in slot.actions)
        assert len(played) > 1, f"{game}: it does more than one thing"


# --- played again


def test_what_is_played_again_goes_as_it_was_recorded(cache: Path, atari: None) -> None:
    file = pictures.frames("Breakout", pictures.HALF_TRAINED, rows=MARKED + 1, slots=1)
    played = np.load(file, allow_pickle=False)
    assert (played.shape, played.dtype) == ((MARKED + 1, 1, 4, 84, 84), np.uint8)
    moved = (played[1:, 0, -1] != played[:-1, 0, -1]).any(axis=(1, 2))
    assert moved.mean() > 0.25, "the ball, the paddle"
    assert pictures.frames("Breakout", pictures.HALF_TRAINED, rows=MARKED + 1, slots=1) == file
    random = np.load(pictures.frames("Breakout", rows=MARKED + 1, slots=1), allow_pickle=False)
    assert not np.array_equal(played, random)


def other(action: int) -> int:
    return (action + 1) % 4


def test_another_game_than_the_recorded_one_is_told_apart(
    cache: Path, atari: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = half_trained.recordings()["Breakout"]
    slot = recording.slots[0]
    for change, told in (
        ({"actions": (*map(other, slot.actions[:MARKED]), *slot.actions[MARKED:])}, "another way"),
        ({"marks": ("0" * 16, *slot.marks[1:])}, rf"ale-py=={recording.ale_py}"),
    ):
        changed = Recording(recording.ale_py, (replace(slot, **change),))  # type: ignore[arg-type]
        monkeypatch.setattr(pictures, "recordings", lambda one=changed: {"Breakout": one})
        with pytest.raises(Unavailable, match=told):
            pictures.frames("Breakout", pictures.HALF_TRAINED, rows=MARKED + 1, slots=1)
    assert not list(cache.iterdir())


def test_more_rows_than_were_recorded_are_an_error(cache: Path) -> None:
    with pytest.raises(ValueError, match="257 rows of Pong were recorded, not 258"):
        pictures.frames("Pong", pictures.HALF_TRAINED, rows=ROWS + 1, slots=1)


def test_a_mark_holds_all_that_was_before_it() -> None:
    def marked(rams: np.ndarray[Any, Any], lead: int) -> dict[int, str]:
        marks = Marks(lead)
        found = [marks.take(ram) for ram in rams]
        return {at: mark for at, mark in enumerate(found) if mark is not None}

    rams = np.random.default_rng(1).integers(256, size=(2 * MARKED + 10, 128), dtype=np.uint8)
    plain = marked(rams, 0)
    assert list(plain) == [0, MARKED, 2 * MARKED]
    assert list(marked(rams, 7)) == [7, MARKED + 7, 2 * MARKED + 7]
    rams[3, 5] ^= 1
    changed = marked(rams, 0)
    assert [plain[at] == changed[at] for at in plain] == [True, False, False]


# --- recording


def untrained(folder: Path, game: str) -> Path:
    """A run with one checkpoint: its policy acts, as new networks do."""
    from bench_parts.console import ENV, Console

    env = Console(game)
    experiment = Experiment(env=EnvConfig(ENV, {"game": game}), agent=AgentConfig("ppo", {"normalise": True}))
    agent = make_agent(resolve_agent("ppo"), env_spec(env, ENV), experiment.agent.settings)
    env.close()
    folder.mkdir()
    (folder / EXPERIMENT_FILE).write_text(dump_experiment(experiment), encoding="utf-8")
    learner = agent.learner("cpu", 1)
    meta = checkpoint.Meta(version=1, updates=1, sampled=64, steps=64)
    checkpoint.save(folder / "checkpoints", meta, learner.save(), learner.weights())
    return folder


def test_a_policy_is_recorded_and_played_again(
    cache: Path, atari: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from bench_parts import record

    run, file = untrained(tmp_path / "run", "Breakout"), tmp_path / "made.json"
    for name, value in {"FILE": file, "_LEAD": 5, "_SLOTS": 2, "_ROWS": MARKED + 1, "_EPISODES": 1}.items():
        monkeypatch.setattr(record, name, value)
    record.main([f"Breakout={run}"])
    made = half_trained.told(file)["games"]["Breakout"]
    assert (made["steps"], made["episodes"]) == (64, 1)
    assert min(made["return"], made["random_return"]) >= 0, "points are not lost in this game"
    found = half_trained.recordings(file)
    assert [slot.lead for slot in found["Breakout"].slots] == [0, 5]
    monkeypatch.setattr(pictures, "recordings", lambda: found)
    played = np.load(
        pictures.frames("Breakout", pictures.HALF_TRAINED, rows=MARKED + 1, slots=2), allow_pickle=False
    )
    assert played.shape == (MARKED + 1, 2, 4, 84, 84)
    with pytest.raises(SystemExit, match="not Pong"):
        record.main([f"Pong={run}"])
    with pytest.raises(SystemExit, match="GAME=RUN_DIR"):
        record.main([f"Tetris={run}"])


def test_what_is_seen_of_the_memory(atari: None) -> None:
    from bench_parts.console import Places

    before, now = np.zeros(128, np.uint8), np.zeros(128, np.uint8)
    before[[10, 20]], now[[10, 20]] = (0, 255), (64, 0)
    seen = Places((10, 20), ((20, 10),)).see(now, before)
    assert seen.tolist() == [0.5, 0, 0.5, -255 / 128, -0.5]


@pytest.mark.parametrize("game", pictures.GAMES)
def test_the_console_is_an_environment_like_others(game: str, atari: None) -> None:
    from bench_parts.console import Console

    from p2prl.testing import check_env

    check_env(lambda: Console(game))
    env = Console(game)
    assert env.action_space.n <= len(LETTERS)  # type: ignore[attr-defined]
    env.close()


def test_frames_that_cannot_be_played_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PRL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(Unavailable, match=r"ale_py.*--setup"):
        pictures.frames("Pong", rows=2, slots=1)
    assert not list(tmp_path.iterdir())
