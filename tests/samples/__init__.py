"""Environments and an agent that only tests use, as real ones: `--env tests.samples:Noise-v0`, `--agent idle.py:Idle`."""

from gymnasium.envs.registration import register

register("Noise-v0", entry_point="tests.samples.envs:Noise")
register("Unseeded-v0", entry_point="tests.samples.envs:Unseeded")
