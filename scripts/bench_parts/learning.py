"""Time to a return with more and more joiners, each a namespace with one real-time player of four slots.

PPO on CartPole, 100 ticks a second whether or not anyone acts: what finds no room is dropped, and play goes on. Seconds
run from the start of the `join` commands, which all start at once and find the host by mDNS; the limit is what one
joiner took, divided by how many there are. All processes share this machine: with many joiners most of the time is
that of starting them one beside the other, which on machines of their own would be a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench_parts._lan import workplace
from bench_parts.kinds import Case, Unavailable
from bench_parts.netns_solve import solve
from p2prl.words import many
from tests.netns.lab import Lab, missing

_JOINERS = (1, 5, 20, 40)
_RETURN, _SEED = 300.0, 1
_EXPERIMENT = (
    *("cartpole-ppo", "--env", "realtime", "--set", "env.args.tick_s=0.01"),
    *("--set", "play.envs=4", "--set", "play.when_full=drop_oldest"),
)
#: tinyverse, by its authors: minutes to a result on so many cores (constants, not measured here).
_ANCESTOR = (
    "tinyverse's own figures are 15 minutes on 1 core, 5 on 20, 4 on 40 (constants, not measured here)"
)


def cases(quick: bool) -> Iterator[Case]:
    """A row for each number of joiners. `quick` asks for a return that any policy reaches soon."""
    crowds, target = ((1, 2), 20.0) if quick else (_JOINERS, _RETURN)
    why = missing()
    one_s = 0.0
    for joiners in crowds:
        named: Case = {
            "case": f"ppo, real-time CartPole to {target:g}, {many(joiners, 'joiner')}",
            "unit": "s",
        }
        if why:
            yield {**named, "ours": None, "note": why}
            continue
        try:
            with workplace() as folder, Lab(1 + joiners, Path(folder)) as lan:
                row = solve(lan, joiners, _EXPERIMENT, target, _SEED)
        except (
            RuntimeError,
            AssertionError,
        ) as error:  # a command that ended, or a return that was not reached
            raise Unavailable(str(error)) from error
        one_s = one_s or row["solved_s"]
        yield {
            **named,
            "ours": row["solved_s"],
            "limit": one_s / joiners,
            "note": f"all played after {row['first_bundle_s'][-1]:.1f} s; {row['steps']:,} steps; {_ANCESTOR}",
        }
