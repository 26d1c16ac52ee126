"""p2prl.testing: the contract tests catch what breaks the contract, one thing at a time."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from p2prl_agents.dqn import DQN, DQNActor
from p2prl_agents.dqn_learner import DQNLearner
from p2prl_envs.chain import Chain, make_chain

from p2prl.learn.contracts import Array, Explore, Field, ReplaySpec, Update, Weights
from p2prl.learn.spaces import env_spec
from p2prl.registry import make_env_factory, resolve_agent
from p2prl.testing import check_agent, check_env

CHAIN = env_spec(make_chain(observation="box"), "chain")
SETTINGS = {"hidden": [8], "batch": 8}


class Meddling(DQN):
    """DQN whose actor and learner can be made to misbehave."""

    actor_type: type[DQNActor] = DQNActor
    learner_type: type[DQNLearner] = DQNLearner

    def actor(self) -> DQNActor:
        return self.actor_type(self)

    def learner(self, device: str, seed: int) -> DQNLearner:
        return self.learner_type(self, device, seed)


class OutOfBounds(DQNActor):
    def act(self, obs: Any, state: Any, explore: Explore | None) -> Any:
        actions, state, extras = super().act(obs, state, explore)
        return actions + 2, state, extras


class Flat(DQNActor):
    def act(self, obs: Any, state: Any, explore: Explore | None) -> Any:
        actions, state, extras = super().act(obs, state, explore)
        return actions[:, None], state, extras


class Extra(DQNActor):
    def act(self, obs: Any, state: Any, explore: Explore | None) -> Any:
        actions, state, _ = super().act(obs, state, explore)
        return actions, state, {"value": np.zeros(len(actions))}


class Greedless(DQNActor):
    rng = np.random.default_rng(0)

    def act(self, obs: Any, state: Any, explore: Explore | None) -> Any:
        return self.rng.integers(2, size=len(obs)).astype(np.uint8), state, {}


class Normalising(DQNActor):
    def act(self, obs: Any, state: Any, explore: Explore | None) -> Any:
        obs -= 1
        return super().act(obs, state, explore)


class Scribbling(DQNActor):
    def load(self, weights: Weights) -> None:
        weights["q/dense0/bias"][:] = 0
        super().load(weights)


class Views(DQNLearner):
    def weights(self) -> Weights:
        named = super().weights()
        first = self._trainable.tensors["q/dense0/weight"].detach().numpy()
        return {**named, "q/dense0/weight": first}


class Forgetful(DQNLearner):
    def save(self) -> Mapping[str, Array]:
        return {**super().save(), "adam_mean": np.zeros_like(super().save()["adam_mean"])}


class Infinite(DQNLearner):
    def update(self, batch: Any) -> Update:
        super().update(batch)
        return Update(metrics={"loss": float("nan")})


@pytest.mark.parametrize(
    ("actor", "learner", "said"),
    [
        (OutOfBounds, DQNLearner, "leaves its bounds"),
        (Flat, DQNLearner, "has the shape"),
        (Extra, DQNLearner, r"act gives the fields \['value'\]"),
        (Greedless, DQNLearner, "two different actions"),
        (Normalising, DQNLearner, "changed the observation"),
        (DQNActor, Views, "'q/dense0/weight' as a view"),
        (DQNActor, Forgetful, "one update after load"),
        (DQNActor, Infinite, "'loss' is nan"),
    ],
)
def test_each_breach_is_named(actor: type[DQNActor], learner: type[DQNLearner], said: str) -> None:
    class Broken(Meddling):
        actor_type, learner_type = actor, learner

    with pytest.raises(AssertionError, match=said):
        check_agent(Broken, CHAIN, SETTINGS)


def test_a_tolerance_that_is_not_kept_is_named() -> None:
    class Touchy(DQNActor):
        """Acts by the last digits of its values."""

        def act(
            self, obs: Any, state: dict[str, Array], explore: Explore | None
        ) -> tuple[Any, dict[str, Array], Mapping[str, Array]]:
            values, following = self.values(obs, state)
            actions = (values[:, 0] * 1e5).astype(np.int64) % 2
            return actions.astype(self._agent.action_dtype), following, {}

    class Broken(Meddling):
        actor_type = Touchy

    with pytest.raises(AssertionError, match=r"action differs by 0\.\d+; weights_tolerance is 0\.02"):
        check_agent(Broken, CHAIN, SETTINGS)
    Broken.weights_tolerance = 0.0
    check_agent(Broken, CHAIN, SETTINGS)
    Broken.weights_tolerance = 1.0
    with pytest.raises(AssertionError, match=r"weights_tolerance is 1\.0"):
        check_agent(Broken, CHAIN, SETTINGS)


def test_weights_are_handed_out_read_only() -> None:
    class Broken(Meddling):
        actor_type = Scribbling

    with pytest.raises(ValueError, match="read-only"):
        check_agent(Broken, CHAIN, SETTINGS)


def test_bad_fields_and_replay_are_named() -> None:
    class BadField(DQN):
        def fields(self) -> Mapping[str, Field]:
            return {"value": Field("float32", (-1,))}

    class BadWindow(DQN):
        def replay(self) -> ReplaySpec:
            return ReplaySpec(ticks=4, window=5)

    with pytest.raises(AssertionError, match="negative side"):
        check_agent(BadField, CHAIN, SETTINGS)
    with pytest.raises(AssertionError, match="window 5"):
        check_agent(BadWindow, CHAIN, SETTINGS)

    class BadOnce(DQN):
        def fields(self) -> Mapping[str, Field]:
            return {"state": Field("float32", (2,), once=True)}

    with pytest.raises(AssertionError, match="only 0, whole sessions, will do"):
        check_agent(BadOnce, CHAIN, SETTINGS)


class Prioritised(Meddling):
    """DQN that uses its probabilities, as far as the contract goes."""

    given: Any = staticmethod(lambda probability: 2.0 / probability)

    def replay(self) -> ReplaySpec:
        return msgspec.structs.replace(super().replay(), kind="prioritised")

    def learner(self, device: str, seed: int) -> DQNLearner:
        given = self.given

        class Ranking(DQNLearner):
            def update(self, batch: Any) -> Update:
                update = super().update(batch)
                return Update(metrics=update.metrics, priorities=given(batch["probability"]))

        return Ranking(self, device, seed)


def test_an_agent_with_prioritised_replay_passes() -> None:
    check_agent(Prioritised, CHAIN, SETTINGS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda p: p[:3], r"have the shape \(3,\), not \(8,\)"),
        (lambda p: p.astype(np.float64), "have the dtype float64"),
        (lambda p: p * 0, r"a priority is 0\.0"),
        (lambda p: p * np.nan, "a priority is nan"),
    ],
)
def test_priorities_that_cannot_be_are_named(given: Any, said: str) -> None:
    class Broken(Prioritised):
        pass

    Broken.given = staticmethod(given)
    with pytest.raises(AssertionError, match=said):
        check_agent(Broken, CHAIN, SETTINGS)


def test_priorities_without_prioritised_replay_are_named() -> None:
    class Ranking(DQNLearner):
        def update(self, batch: Any) -> Update:
            return Update(priorities=np.ones(8, np.float32))

    class Broken(Meddling):
        learner_type = Ranking

    with pytest.raises(AssertionError, match=r"replay\(\)\.kind is 'uniform'"):
        check_agent(Broken, CHAIN, SETTINGS)


@pytest.mark.parametrize(
    ("where", "said"), [("weights", r"weights\(\) are not"), ("save", r"save\(\) holds NaN")]
)
def test_weights_or_a_state_that_are_no_numbers_are_named(where: str, said: str) -> None:
    class Spoilt(DQNLearner):
        def weights(self) -> Any:
            bad = where == "weights" and self._updates
            return {**super().weights(), "extra": np.float32(np.inf if bad else 1)}

        def save(self) -> Any:
            return {**super().save(), "extra": np.float32(np.nan if where == "save" else np.inf)}

    class Broken(Meddling):
        learner_type = Spoilt

    with pytest.raises(AssertionError, match=said):
        check_agent(Broken, CHAIN, SETTINGS)


@pytest.mark.parametrize(("first", "when"), [(1, "before any update"), (0, "after 40 updates")])
def test_weights_of_nan_are_not_taken_for_a_view(first: int, when: str) -> None:
    class Spoilt(DQNLearner):
        def weights(self) -> Any:
            named = dict(super().weights())
            if first or self._updates:
                named["q/dense0/weight"] = np.full_like(named["q/dense0/weight"], np.nan)
            return named

    class Broken(Meddling):
        learner_type = Spoilt

    with pytest.raises(
        AssertionError, match=rf"^{when}: weights\(\) are not finite: q/dense0/weight holds nan"
    ):
        check_agent(Broken, CHAIN, SETTINGS)


class ReturnsAlone:
    """Sees nothing but rewards, and a state that is stored once."""

    class Settings(msgspec.Struct, frozen=True):
        """None."""

    ladder = 1

    def __init__(self, env: Any, settings: Any) -> None:
        pass

    def fields(self) -> Mapping[str, Field]:
        return {"state": Field("float32", (2,), once=True)}

    def replay(self) -> ReplaySpec:
        return ReplaySpec(kind="queue", ticks=5, batch=4, window=0, observations=False, actions=False)

    def actor(self) -> Any:
        return ReturnsAloneActor()

    def learner(self, device: str, seed: int) -> Any:
        return ReturnsAloneLearner()


class ReturnsAloneActor:
    def load(self, weights: Weights) -> None:
        pass

    def start(self, slots: int) -> dict[str, Array]:
        return {"state": np.zeros((slots, 2), np.float32)}

    def act(self, obs: Any, state: Any, explore: Explore | None) -> Any:
        return np.zeros(len(obs), np.uint8), {"state": state["state"] + 1}, state


class ReturnsAloneLearner:
    def update(self, batch: Any) -> Update:
        shapes = {name: values.shape for name, values in batch.items()}
        assert shapes == {"reward": (4, 5), "flags": (4, 5), "state": (4, 1, 2), "version": (4,)}
        return Update()

    def weights(self) -> Weights:
        return {"none": np.zeros(1)}

    def save(self) -> Mapping[str, Array]:
        return {}

    def load(self, state: Mapping[str, Array]) -> None:
        pass


def test_an_agent_that_needs_no_observations_is_given_none() -> None:
    check_agent(ReturnsAlone, CHAIN)


def test_a_sound_agent_passes() -> None:
    check_agent(Meddling, CHAIN, SETTINGS)


class Deaf(Chain):
    """Ignores its seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None)


class Stubborn(Chain):
    """Every seed is the same to it."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else 1)


class Rambling(Chain):
    """Takes the seed of its first reset only, as mobile-env takes that of its config."""

    rng: np.random.Generator | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.rng = self.rng or np.random.default_rng(seed)
        super().reset()
        self._place = int(self.rng.integers(self.length - 1))
        return self._place, {}


class Straying(Chain):
    """What it shows leaves its space, which begins at 0."""

    def step(self, action: int) -> Any:
        obs, *rest = super().step(action)
        return obs - np.float32(50), *rest


class Big(Chain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed)
        return np.zeros((3, 3), np.float32), info


class NaN(Chain):
    def step(self, action: int) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float("nan"), *rest


class Modest(Chain):
    """Gives more than it says."""

    reward_range = (0.0, 0.5)


class Overflowing(Chain):
    def step(self, action: int) -> Any:
        _, *rest = super().step(action)
        return 300, *rest


class Old(Chain):
    """As before Gymnasium."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class Bare(Chain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class Restarting(Chain):
    def step(self, action: int) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "final_observation": 0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Deaf(random_start=True), "same seed and actions differ"),
        (lambda: Rambling(length=9), "has played differs from a new one at step 0"),
        (lambda: Stubborn(length=9, random_start=True), "two seeds gave the same ones"),
        (lambda: Big(observation="box"), r"reset gave obs the shape \(3, 3\)"),
        (NaN, "the reward nan"),
        (Modest, "the reward 1.0; its reward_range is 0.0 to 0.5"),
        (Overflowing, "uint8, its space's dtype, cannot hold"),
        (Restarting, "resets itself"),
        (Old, r"step\(\) must give \(observation, reward, terminated, truncated, info\), gave 4 values"),
        (Bare, r"reset\(\) must give \(observation, info\), gave one value, of the type int"),
    ],
)
def test_each_fault_of_an_environment_is_named(make: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_env(make)


def test_an_observation_outside_its_space_is_warned_of_once() -> None:
    with pytest.warns(
        UserWarning, match=r"step gave obs the value -\d\d\.0; its space says 0\.0 to inf"
    ) as caught:
        check_env(lambda: Straying(observation="box"))
    assert len(caught) == 1


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_gymnasium_keeps_the_contract(env_id: str) -> None:
    check_env(lambda: gym.make(env_id))


def _registered(group: str) -> list[str]:
    return sorted({point.name for point in metadata.entry_points(group=group)})


@pytest.mark.parametrize("name", _registered("p2prl.agents"))
def test_every_registered_agent_keeps_the_contract(name: str) -> None:
    check_agent(resolve_agent(name), CHAIN)
    check_agent(resolve_agent(name), env_spec(gym.make("CartPole-v1"), "CartPole-v1"))


@pytest.mark.parametrize("name", _registered("p2prl.envs"))
def test_every_registered_environment_can_be_made(name: str) -> None:
    with make_env_factory(name, {})() as env:
        env_spec(env, name)
        env.reset(seed=1)
