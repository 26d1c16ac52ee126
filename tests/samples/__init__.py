"""Environments and an agent for tests, found as any other: `--env tests.samples:Noise-v0`, `--agent idle.py:Idle`."""

from gymnasium.envs.registration import register

register("Noise-v0", entry_point="tests.samples.envs:Noise")
register("Unseeded-v0", entry_point="tests.samples.envs:Unseeded")
register("Paced-v0", entry_point="tests.samples.envs:Paced")
register("Fragile-v0", entry_point="tests.samples.envs:Fragile")
register("Tally-v0", entry_point="tests.samples.envs:Tally")
register("Odd-v0", entry_point="tests.samples.envs:Odd")
register("Acts-v0", entry_point="tests.samples.envs:Acts")
