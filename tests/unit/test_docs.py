"""The docs say what is there: links lead somewhere, commands parse, tables are those of the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from p2prl import __version__
from p2prl.cli.main import app
from p2prl.core import messages as m
from p2prl.registry import agent_names
from tests import docs_kit
from tests.docs_kit import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = docs_kit.pages()
_IDS = [str(page.relative_to(ROOT)) for page in PAGES]
_COMMANDS = typer.main.get_command(app)
_PATHS = re.compile(r"`((?:p2prl|agents|envs|tests|scripts|docs)/[\w./-]+\w)`")
#: Flags that the docs mention and that are not ours.
_FOREIGN_FLAGS = {"--no-deps", "--logdir", "--check", "--fix", "--help", "--list", "--quick", "--setup"}


# --- links, paths, fences


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", docs_kit.prose(docs_kit.read(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=_IDS)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", docs_kit.prose(docs_kit.read(page))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.is_file() or (anchor and anchor not in _anchors(there)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=_IDS)
def test_files_that_are_named_exist(page: Path) -> None:
    text = docs_kit.read(page)
    named = set(_PATHS.findall(text)) | set(re.findall(r"^(scripts/[\w-]+)", text, re.M))
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", PAGES, ids=_IDS)
def test_pages_are_plain_text_of_bounded_width(page: Path) -> None:
    """Tables may be wide; words and pictures fit a terminal."""
    generated = re.sub(r"<!-- generated: .*?<!-- end of", "", docs_kit.read(page), flags=re.S)
    wide = [line for line in generated.splitlines() if len(line) > 130 and not line.lstrip().startswith("|")]
    assert not wide


# --- commands


def _commands(page: Path) -> Iterator[str]:
    """Each `p2prl ...` line of a page's code blocks."""
    for block in docs_kit.blocks(docs_kit.read(page)):
        if block.language in ("", "sh", "bash", "console"):
            for line in block.text.splitlines():
                found = re.match(r"(?:\$ )?(?:\S*[/\\])?p2prl (\w.*)$", line.strip())
                if (
                    found and "[flags]" not in line
                ):  # the usage lines of docs/cli.md, which test_cli_main.py checks
                    yield found[1]


@pytest.mark.parametrize("page", PAGES, ids=_IDS)
def test_commands_in_code_blocks_parse(page: Path) -> None:
    for line in _commands(page):
        words = shlex.split(line, comments=True)
        command = getattr(_COMMANDS, "commands", {}).get(words[0])
        assert command is not None, line
        command.make_context(words[0], words[1:])  # raises a usage error for what it does not take


def test_there_are_commands_to_check() -> None:
    found = [line for page in PAGES for line in _commands(page)]
    assert len(found) >= 15
    assert {line.split()[0] for line in found} >= {"host", "join", "status"}


@pytest.mark.parametrize("page", PAGES, ids=_IDS)
def test_flags_that_are_named_exist(page: Path) -> None:
    commands: dict[str, Any] = getattr(_COMMANDS, "commands", {})
    known = {flag for command in (_COMMANDS, *commands.values()) for p in command.params for flag in p.opts}
    named = set(re.findall(r"(?<![\w-])(--[a-z][\w-]+)", docs_kit.read(page)))
    assert named <= known | _FOREIGN_FLAGS | _script_flags()


def _script_flags() -> set[str]:
    """Those of the scripts that docs/reliability.md and docs/performance.md are about."""
    bench = (ROOT / "scripts" / "bench_parts").glob("*.py")
    sources = (ROOT / "scripts" / "fuzz", ROOT / "tests" / "simulation" / "runner.py", *bench)
    texts = [source.read_text(encoding="utf-8") for source in sources]
    found = {flag for text in texts for flag in re.findall(r'add_argument\(\s*"(--[\w-]+)"', text)}
    assert found >= {"--closed", "--seed-from"}
    return found


# --- what is generated


@pytest.mark.parametrize("script", ["gen-protocol-docs", "gen-agent-docs"])
def test_generated_pages_are_fresh(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_field_of_every_message_is_explained() -> None:
    rows = re.findall(r"^\| `\w+` \| `.+` \|.*\| *(.*) \|$", _section("protocol.md", "messages"), re.M)
    assert len(rows) > 200
    assert all(rows)


def test_every_message_and_refusal_is_in_the_protocol() -> None:
    generated = _section("protocol.md", "messages")
    kinds = m.Message.__subclasses__()
    assert len(kinds) > 30
    assert not [kind.__name__ for kind in kinds if f"**{kind.__name__}** · `{_tag(kind)}`" not in generated]
    page = docs_kit.read(ROOT / "docs" / "protocol.md")
    by_hand = re.sub(r"<!-- generated: .*?<!-- end of", "", page, flags=re.S)
    assert not [reason for reason in m.REFUSALS if f"`{reason}`" not in by_hand]


def _tag(kind: type[m.Message]) -> str:
    return str(kind.__struct_config__.tag)


def _section(page: str, name: str) -> str:
    text = docs_kit.read(ROOT / "docs" / page)
    return text.split(f"<!-- generated: {name} -->")[1].split(f"<!-- end of {name} -->")[0]


# --- architecture, agents, dependencies, changelog


def test_architecture_lists_the_modules_that_there_are() -> None:
    page = docs_kit.read(ROOT / "docs" / "architecture.md")
    listed: dict[str, set[str]] = {}
    for room, modules in re.findall(r"^\| (`\w+`|beside them) \|.*\| (`.+) \|$", page, re.M):
        words = re.sub(r"\([^)]*\)", "", modules)
        listed["" if room == "beside them" else room.strip("`")] = set(re.findall(r"`(\w+)`", words))
    found: dict[str, set[str]] = {}
    for path in (ROOT / "p2prl").rglob("*.py"):
        if path.stem not in ("__init__", "__main__"):
            found.setdefault(path.parent.name if path.parent.name != "p2prl" else "", set()).add(path.stem)
    assert listed == found


def test_every_agent_has_a_page() -> None:
    assert {f"{name}.md" for name in agent_names()} == {
        page.name for page in (ROOT / "docs" / "agents").iterdir()
    }


def _rows(page: Path) -> set[str]:
    """What stands in backticks in the first column of a page's tables."""
    return set(re.findall(r"^\| `([^`]+)` \|", docs_kit.read(page), re.M))


def test_dependencies_are_those_of_pyproject() -> None:
    project = tomllib.loads(docs_kit.read(ROOT / "pyproject.toml"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=;~! ]", requirement)[0] for requirement in wanted}
    assert _rows(ROOT / "docs" / "dependencies.md") == names


def test_the_changelog_has_this_version() -> None:
    assert f"## [{__version__}]" in docs_kit.read(ROOT / "CHANGELOG.md")


def test_pages_name_no_machine() -> None:
    for page in PAGES:
        assert not re.findall(r"/(?:home|Users|work|tmp|root)/\S+", docs_kit.read(page)), page
