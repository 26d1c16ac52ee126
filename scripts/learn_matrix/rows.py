"""The matrix itself. Peers' settings are rl-zoo's (rl-baselines3-zoo, hyperparams/*.yml)."""

from __future__ import annotations

from dataclasses import replace

from learn_matrix.kinds import Bar, Criterion, Forced, Host, Limits, Policies, Row, Sb3

#: Within the peer's steps x 1.3, and faster than it, start-up included.
_BESIDE = Bar(steps=1.3, seconds=1.0)
_SOLVED = Criterion(475)
_CARTPOLE = "CartPole-v1"

_SB3_PPO = Sb3(
    "PPO",
    _CARTPOLE,
    steps=100_000,
    envs=8,
    settings={
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
    },
    falling=("learning_rate", "clip_range"),
)
_SB3_A2C = Sb3("A2C", _CARTPOLE, steps=500_000, envs=8, settings={"ent_coef": 0.0})
_SB3_DQN = Sb3(
    "DQN",
    _CARTPOLE,
    steps=50_000,
    settings={
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
)
_SB3_ACROBOT = Sb3(
    "PPO",
    "Acrobot-v1",
    steps=1_000_000,
    envs=16,
    settings={"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    normalise=True,
)
_SB3_LUNAR = Sb3(
    "PPO",
    "LunarLander-v3",
    steps=1_000_000,
    envs=16,
    settings={
        "n_steps": 1024,
        "batch_size": 64,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "n_epochs": 4,
        "ent_coef": 0.01,
    },
)
_SB3_MOUNTAINCAR = Sb3(
    "DQN",
    "MountainCar-v0",
    steps=120_000,
    settings={
        "learning_rate": 4e-3,
        "batch_size": 128,
        "buffer_size": 10_000,
        "learning_starts": 1000,
        "gamma": 0.98,
        "target_update_interval": 600,
        "train_freq": 16,
        "gradient_steps": 8,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
)

_CLASSIC = (
    Row(
        "cartpole-ppo",
        "ppo",
        _CARTPOLE,
        Host("cartpole-ppo"),
        _SOLVED,
        Limits(200_000, 180),
        peer=_SB3_PPO,
        bar=_BESIDE,
        short="ppo.py::test_ppo_solves_cartpole",
    ),
    Row(
        "cartpole-vtrace",
        "vtrace",
        _CARTPOLE,
        Host("cartpole-vtrace"),
        _SOLVED,
        Limits(1_000_000, 240),
        peer=_SB3_A2C,
        bar=_BESIDE,
        short="vtrace.py::test_vtrace_solves_cartpole",
    ),
    Row("cartpole-a2c", "vtrace (a2c)", _CARTPOLE, Host("a2c"), _SOLVED, Limits(1_000_000, 240)),
    Row(
        "cartpole-dqn",
        "dqn",
        _CARTPOLE,
        Host("cartpole"),
        Criterion(475, "greedy"),
        Limits(1_000_000, 240),
        peer=_SB3_DQN,
        bar=_BESIDE,
        short="dqn.py::test_dqn_solves_cartpole",
    ),
    Row(
        "cartpole-cem",
        "cem",
        _CARTPOLE,
        Host("cartpole-cem"),
        _SOLVED,
        Limits(1_000_000, 240),
        short="cem.py::test_cem_solves_cartpole",
    ),
    Row(
        "cartpole-es",
        "es",
        _CARTPOLE,
        Host("cartpole-es"),
        _SOLVED,
        Limits(5_000_000, 300),
        short="es.py::test_es_solves_cartpole",
    ),
    Row(
        "acrobot-ppo",
        "ppo",
        "Acrobot-v1",
        Host("acrobot", agent="ppo"),
        Criterion(-100),
        Limits(1_000_000, 600),
        peer=_SB3_ACROBOT,
        bar=_BESIDE,
    ),
    Row(
        "lunarlander-ppo",
        "ppo",
        "LunarLander-v3",
        Host("lunarlander", agent="ppo"),
        Criterion(200),
        Limits(3_000_000, 1500),
        peer=_SB3_LUNAR,
        bar=_BESIDE,
    ),
    Row(
        "lunarlander-continuous-ppo",
        "ppo",
        "LunarLander-v3, continuous",
        Host("lunarlander-continuous", agent="ppo"),
        Criterion(200),
        Limits(3_000_000, 1500),
        peer=replace(_SB3_LUNAR, env_args={"continuous": True}),
        bar=_BESIDE,
    ),
    Row(
        "mountaincar-dqn",
        "dqn, curiosity",
        "MountainCar-v0",
        Host("mountaincar"),
        Criterion(-110, "greedy"),
        Limits(1_000_000, 600),
        peer=_SB3_MOUNTAINCAR,
    ),
)

_MEMORY = (
    Row(
        "cartpole-masked",
        "vtrace, gru",
        "cartpole-masked",
        Host("cartpole-masked"),
        _SOLVED,
        Limits(400_000, 240),
        peer=Host("cartpole-masked", settings={"agent.core": "none"}, label="vtrace without memory"),
        bar=Bar(alone=True),
        short="vtrace.py::test_vtrace_with_a_memory_solves_cartpole_without_velocities",
    ),
    Row(
        "minigrid-memory",
        "vtrace, gru",
        "MiniGrid-MemoryS7-v0, view 3",
        Host("minigrid-memory"),
        Criterion(0.9),
        Limits(2_000_000, 1200),
        peer=Host("minigrid-memory", settings={"agent.core": "none"}, label="vtrace without memory"),
        peer_limits=Limits(500_000, 600),
        bar=Bar(alone=True),
    ),
)

_MOBILE = (
    Row(
        "mobile-medium",
        "ppo",
        "mobile-env medium",
        Host("mobile-medium"),
        Criterion(None),
        Limits(1_000_000, 1500),
        peer=Policies(("random", "closest"), "medium"),
    ),
    *(
        Row(
            f"mobile-100k-{players}",
            f"ppo, {players} player{'s' if players > 1 else ''}",
            "mobile-env medium",
            Host("mobile-medium", players=players),
            Criterion(100_000, "steps"),
            Limits(100_000, 1500),
        )
        for players in (1, 2, 4)
    ),
)

#: Weights versions.
LAGS = (0, 1, 2, 5, 8, 10, 20, 40, 100, 300)
#: One player's slots: with them a version is what was learned from 256 ticks, whoever the agent is.
SLOTS = {"vtrace": 16, "dqn": 8, "ppo": 16}
#: Up to which lag an agent is claimed to hold; ppo's is its own max_lag, which a real run enforces.
HOLDS_TO = {"vtrace": 20, "dqn": 20, "ppo": 8}
PRESETS = {"vtrace": "cartpole-vtrace", "dqn": "cartpole", "ppo": "cartpole-ppo"}


#: Where one row's figures are held against another's, chance among three is too large.
_FIVE = (1, 2, 3, 4, 5)


def _forced(agent: str, lag: int) -> Row:
    settings = {"max_lag": 0} if agent == "ppo" else {}  # let in, to see where it gives way
    held = Bar(like=f"lag-{agent}-0" if lag else "")
    return Row(
        f"lag-{agent}-{lag}",
        agent,
        _CARTPOLE,
        Forced(PRESETS[agent], lag, settings, SLOTS[agent]),
        _SOLVED,
        Limits(600_000, 600),
        bar=held if lag <= HOLDS_TO[agent] else Bar(none=True),
        seeds=_FIVE,
    )


#: Real-time players of four slots each, 100 ticks a second. Nobody can wait in such a world: what finds no room is
#: dropped, and play goes on.
CROWDS = (1, 4, 16)


def _crowd(agent: str, players: int) -> Row:
    settings = {"env.args.tick_s": 0.01, "play.envs": 4, "play.when_full": "drop_oldest"}
    preset = "cartpole-realtime" if agent == "dqn" else PRESETS[agent]
    ours = Host(preset, env="realtime", settings=settings, players=0, joiners=players)
    bar = Bar(like=f"players-{agent}-1", faster=True) if players > 1 else Bar()
    return Row(
        f"players-{agent}-{players}",
        agent,
        "CartPole-v1, real time",
        ours,
        _SOLVED,
        Limits(1_000_000, 1200),
        bar=bar,
    )


ROWS = (
    *_CLASSIC,
    *_MEMORY,
    *_MOBILE,
    *(_forced(agent, lag) for agent in HOLDS_TO for lag in LAGS),
    *(_crowd(agent, players) for agent in HOLDS_TO for players in CROWDS),
)


def chosen(names: list[str], short: bool = False) -> list[Row]:
    """Rows by name, or by what a name begins with (`lag`, `cartpole`, `players-ppo`); all without names.

    Raises:
        ValueError: a name that fits none.
    """
    found = [row for row in ROWS if not short or row.short]
    for name in names:
        if not any(_fits(row, name) for row in ROWS):
            raise ValueError(f"no row {name!r}; scripts/learn --list names them")
    return [row for row in found if not names or any(_fits(row, name) for name in names)]


def _fits(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name}-")
