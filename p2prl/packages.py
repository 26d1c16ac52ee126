"""Commands for people to copy, as they work here: p2prl itself as it was started, and what installs a package."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from p2prl.errors import MissingPackage, UsageError

#: What `python -m p2prl.cli` runs.
_MODULE = Path(__file__).with_name("cli") / "__main__.py"


def own_command(started: str | None = None) -> str:
    """What starts p2prl again from the same folder: `p2prl` where a shell would find this same one by its name.

    Args:
        started: what this process was started as; default: `sys.argv[0]`. Of another program, that uses p2prl as a
            library, nothing follows: `p2prl`.
    """
    path = Path(sys.argv[0] if started is None else started)
    if path == _MODULE:
        return f"{_quoted(sys.executable)} -m p2prl.cli"
    if path.stem != "p2prl" or path.suffix not in ("", ".exe"):
        return "p2prl"
    found = shutil.which("p2prl")
    return "p2prl" if found is not None and _place(found) == _place(path) else _quoted(str(path))


def _place(path: str | Path) -> str:
    """To compare by; Windows may leave out `.exe`."""
    return os.path.normcase(Path(path).absolute().with_suffix(""))


def _quoted(path: str) -> str:
    """In a way that each system's shell reads."""
    return f'"{path}"' if " " in path else path


def install_command(package: str) -> str:
    """What installs a package where this process would find it: another `pip` may belong to another Python.

    p2prl itself is on no index. So `p2prl[train]` can be had by the pip alone that finds p2prl installed beside it.
    """
    return f'{_quoted(sys.executable)} -m pip install "{package}"'


def missing_package(name: str, error: Exception, provided_by: str = "") -> MissingPackage:
    """Which package, as well as can be told: what the error advises, what it lacks, or what the host has."""
    advice = re.findall(r"pip install ([^`]+)`", str(error))
    package = provided_by
    if advice:
        package = advice[-1].strip().strip("\"'")  # the last: gymnasium names a build tool first
    elif not package and isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.split(".")[0]
        if name.startswith(f"{error.name}:"):  # no advice to install whatever has that name on the internet
            missing = MissingPackage(
                f"{name}: there is no Python module {module} here; put {module}.py into the folder that p2prl is "
                "started in, or install the package that has it"
            )
            missing.exit_code = UsageError.exit_code  # likelier mistyped than missing
            return missing
        package = module
    if not package:
        return MissingPackage(f"{name} cannot be imported: {' '.join(str(error).split())}")
    package = _our_extra(package) or package
    return MissingPackage(f"{name} needs a package that is missing here: {install_command(package)}", package)


def _our_extra(package: str) -> str:
    """`p2prl[box2d]` for a package that one of p2prl's own extras brings, else nothing.

    The smallest such extra; `package` may be a module's name, as `mobile_env`.
    """
    brings: dict[str, set[str]] = {}
    try:
        lines = metadata.requires("p2prl") or []
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return ""
    for line in lines:
        wanted, extra = re.match(r"[^\s<>=!~;(]+", line), re.search(r"extra == ['\"]([^'\"]+)", line)
        if wanted and extra:
            brings.setdefault(extra[1], set()).add(_plain(wanted[0]))
    having = [extra for extra, packages in brings.items() if _plain(package) in packages]
    return f"p2prl[{min(having, key=lambda extra: len(brings[extra]))}]" if having else ""


def _plain(package: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", package).lower()
