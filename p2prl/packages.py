"""Which package has what could not be imported, and the command that installs it here."""

from __future__ import annotations

import re
import sys
from importlib import metadata

from p2prl.errors import MissingPackage, UsageError


def install_command(package: str) -> str:
    """What installs a package where this process would find it: another `pip` may belong to another Python.

    p2prl itself is on no index. So `p2prl[train]` can be had by the pip alone that finds p2prl installed beside it.
    """
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    return f'{python} -m pip install "{package}"'


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
