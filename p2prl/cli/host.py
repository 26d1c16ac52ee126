"""`p2prl host`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.context import Interfaces, Json, Name, Verbose, node_name, verbose
from p2prl.cli.credentials import parsed
from p2prl.cli.units import decimal, seconds, time, whole
from p2prl.config import MAX_PLAYERS, MAX_SHARDS, MAX_SLOTS
from p2prl.errors import UsageError
from p2prl.settings import last_host_name

if TYPE_CHECKING:
    from p2prl.nodes.options import HostOptions

_MAX_PORT = 65535
#: The block's last port, the web page's.
_BLOCK = 80


def host(
    context: typer.Context,
    experiment: Annotated[
        str | None,
        typer.Argument(metavar="EXPERIMENT", help="A preset's name or a TOML file; default: cartpole."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="ID", help="A Gymnasium id, module:Id, or an installed environment's name."
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="An installed agent's name, or path/to/file.py:Class."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, as in agent.learning_rate=0.001 or replay.batch=32; may be repeated.",
        ),
    ] = None,
    name: Name = None,
    players: Annotated[
        int | None,
        typer.Option(
            "--players",
            metavar="N",
            parser=whole("--players", 0, MAX_PLAYERS, 2),
            help="Own player processes; default: cores - 1, at least 1.",
        ),
    ] = None,
    envs: Annotated[
        int | None,
        typer.Option(
            "--envs",
            metavar="B",
            parser=whole("--envs", 1, MAX_SLOTS, 8),
            help="Environment slots of each player.",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="S",
            parser=whole("--shards", 1, MAX_SHARDS, 2),
            help="Replay shard processes.",
        ),
    ] = None,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Train on cuda or mps; an error where there is neither.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="auto|cpu|cuda|mps", help="Where the trainer computes; default: auto."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="BASE",
            parser=whole("--port", 1, _MAX_PORT - _BLOCK, 47900),
            help="First of the block of ports; default: 47800, or the next free block.",
        ),
    ] = None,
    interfaces: Interfaces = None,
    results: Annotated[
        Path,
        typer.Option(
            "--results",
            metavar="DIR",
            help="Where runs are kept; with --resume, also a run's own folder, or one checkpoint's to go back to.",
        ),
    ] = Path("results"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --results that ran last.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", parser=whole("--seed", 0, None, 7), help="Seeds everything."),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="CODE",
            help="The join code, a number and two words as in 17-maple-otter; default: a new one at each start.",
        ),
    ] = None,
    code_uses: Annotated[
        int | None,
        typer.Option(
            "--code-uses",
            metavar="N",
            parser=whole("--code-uses", 1, None, 30),
            help="A join code lets in so many nodes, then there is none until p2prl code --new; default: no limit.",
        ),
    ] = None,
    code_ttl: Annotated[
        str | None,
        typer.Option(
            "--code-ttl",
            metavar="TIME",
            help="A join code is valid for so long: 90 (seconds), 15m, 2h, 1d; default: until the host ends.",
        ),
    ] = None,
    approve: Annotated[
        bool,
        typer.Option("--approve", help="Who knows the join code still waits until you say p2prl admit NODE."),
    ] = False,
    open_: Annotated[
        bool,
        typer.Option(
            "--open",
            help="No join code: any machine that reaches this one may give sessions and read the weights.",
        ),
    ] = False,
    stop_steps: Annotated[
        int | None,
        typer.Option(
            "--stop-steps",
            metavar="N",
            parser=whole("--stop-steps", 1, None, 1_000_000),
            help="Stop after so many environment steps, or a little more.",
        ),
    ] = None,
    stop_return: Annotated[
        float | None,
        typer.Option(
            "--stop-return",
            metavar="R",
            parser=decimal("--stop-return", 475),
            help="Stop when the mean return of 100 episodes is R or more.",
        ),
    ] = None,
    stop_time: Annotated[
        float | None,
        typer.Option(
            "--stop-time",
            metavar="TIME",
            parser=time("--stop-time"),
            help="Stop after so long: 90 (seconds), 15m, 2h, 1d.",
        ),
    ] = None,
    no_stop: Annotated[
        bool,
        typer.Option(
            "--no-stop",
            help="Leave out the stop conditions that the run or the experiment has; flags beside it still count.",
        ),
    ] = False,
    json: Json = False,
    verbose_: Verbose = False,
) -> int:
    """Start a run on this machine: broker, replay shards, trainer and own players. Others join it."""
    from p2prl.cli.build import ExperimentFlags, check_installed, effective_experiment, resumed_experiment
    from p2prl.nodes.options import HostOptions

    flags = ExperimentFlags(
        experiment=experiment,
        env=env,
        agent=agent,
        assignments=assignments or (),
        envs=envs,
        shards=shards,
        seed=seed,
        device=device,
        gpu=gpu,
        stop_steps=stop_steps,
        stop_return=stop_return,
        stop_time=stop_time,
        no_stop=no_stop,
    )
    if open_:
        _nothing_to_prove(
            {"--code": code, "--code-uses": code_uses, "--code-ttl": code_ttl, "--approve": approve}
        )
    back_to = None
    if resume:
        results, back_to, effective = resumed_experiment(flags, results)
        name = name or last_host_name(results)
    else:
        effective = effective_experiment(flags)
    options = HostOptions(
        experiment=check_installed(effective),
        name=node_name(name),
        players=players,
        results=results,
        resume=resume,
        back_to=back_to,
        base_port=port,
        interfaces=tuple(interfaces or ()),
        open=open_,
        code=None if code is None else parsed("--code", code),
        code_uses=code_uses,
        code_ttl_s=None if code_ttl is None else seconds("--code-ttl", code_ttl),
        approve=approve,
    )
    return _run(options, json, verbose(context))


def _nothing_to_prove(given: dict[str, object]) -> None:
    """Raises UsageError for a flag that says how to get into a host that lets in everybody."""
    useless = [flag for flag, value in given.items() if value]
    if useless:
        raise UsageError(
            f"--open lets in any machine, so {' and '.join(useless)} would change nothing; leave out one or the other"
        )


def _run(options: HostOptions, json: bool, verbose: bool) -> int:
    from p2prl.cli.reporters import for_host
    from p2prl.nodes.host import run_host

    with for_host(json, verbose) as reporter:
        return run_host(options, reporter)
