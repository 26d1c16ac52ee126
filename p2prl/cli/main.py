"""The `p2prl` command: its commands, and what becomes of an error. Imports stay few: --help is quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from p2prl import __version__
from p2prl.cli.context import CliState, Verbose
from p2prl.cli.evaluate import evaluate, watch
from p2prl.cli.experiments import experiments
from p2prl.cli.forget import forget
from p2prl.cli.host import host
from p2prl.cli.invite import code, invite
from p2prl.cli.join import join
from p2prl.cli.ls import ls
from p2prl.cli.mistakes import mistake
from p2prl.cli.nodes import admit, nodes, quarantine, remove
from p2prl.cli.output import complain
from p2prl.cli.status import status
from p2prl.cli.streams import OutputLost, give_up_stderr, silence_stdout, standard_streams
from p2prl.errors import P2prlError, UsageError
from p2prl.python_warnings import one_line_each

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

#: typer's own errors of use. It does not export their base class, and has moved it between versions.
_ShownError: type[Exception] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")

app = typer.Typer(
    name="p2prl",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"p2prl {__version__}\n")
        raise typer.Exit(EXIT_OK)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Volunteer computing for reinforcement learning on a LAN.

    One machine says `p2prl host`; any spare laptop says `p2prl join`.
    """
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


app.command("host", short_help="Start a run here; others join it.")(host)
app.command("join", short_help="Join a run on this LAN and play for it.")(join)
app.command("ls", short_help="List the hosts on this LAN.")(ls)
app.command("status", short_help="Show how a run is doing.")(status)
app.command("eval", short_help="Tell a run's score, without exploring.")(evaluate)
app.command("test", short_help="Watch a run's best weights play.")(watch)
app.command("nodes", short_help="List the nodes that your host knows.")(nodes)
app.command("admit", short_help="Let a node in.")(admit)
app.command("remove", short_help="Put a node out, and keep it out.")(remove)
app.command("quarantine", short_help="Keep a node and what it gave out of this run.")(quarantine)
app.command("code", short_help="Show your host's join code, or make a new one.")(code)
app.command("invite", short_help="Make a token for machines where nobody types.")(invite)
app.command("forget", short_help="Forget the key of a host that was joined before.")(forget)
app.command("experiments", short_help="List presets, agents and environments.")(experiments)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit codes are those of docs/cli.md. Never raises but for SystemExit."""
    try:
        return _main(sys.argv[1:] if argv is None else list(argv))
    finally:
        give_up_stderr()


def _main(args: list[str]) -> int:
    state = CliState()
    one_line_each(lambda text: complain(f"warning: {text}"))
    try:
        with standard_streams():
            code = app(args=args, prog_name="p2prl", standalone_mode=False, obj=state)
    except BrokenPipeError:
        silence_stdout()
        return EXIT_ERROR
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except _ShownError as error:
        complain(mistake(error, args, _commands))
        return int(getattr(error, "exit_code", UsageError.exit_code))
    except P2prlError as error:
        _traceback(state)
        if isinstance(error, OutputLost):
            silence_stdout()
        complain(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (the last resort: a person reads one line, not a traceback)
        _traceback(state)
        hint = "" if state.verbose else "; run again with -v to see where"
        complain(f"unexpected {type(error).__name__}: {error}{hint}")
        return EXIT_ERROR
    return code if isinstance(code, int) else EXIT_OK


def _commands() -> dict[str, Any]:
    """All of them, by name."""
    from typer.main import get_command

    return dict(getattr(get_command(app), "commands", {}))


def _traceback(state: CliState) -> None:
    if state.verbose:
        import traceback

        traceback.print_exc()
