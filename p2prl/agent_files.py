"""A class out of a Python file that a person names: `path/to/file.py:Name`."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from p2prl.blame import FAULTS, raised
from p2prl.errors import UsageError
from p2prl.packages import missing_package


def class_in_file(path: Path, class_name: str) -> Any:
    """Run the file and take its class.

    Raises:
        UsageError: no such file or class, or the file raised.
        MissingPackage: it imports what is not installed.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path} (looked in {Path.cwd()})")
    module = _module_from(path.resolve())
    found = getattr(module, class_name, None)
    if found is None:
        there = {key: value for key, value in vars(module).items() if _is_own_class(value, module)}
        agents = [key for key, value in there.items() if hasattr(value, "learner")]
        listed = f"it has {', '.join(sorted(agents or there))}" if there else "it has no classes"
        raise UsageError(f"{path} has no class {class_name!r}; {listed}")
    return found


def _is_own_class(value: Any, module: ModuleType) -> bool:
    return inspect.isclass(value) and value.__module__ == module.__name__


def _module_from(path: Path) -> ModuleType:
    name = f"p2prl_file_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: annotations are resolved through it
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        raise missing_package(str(path), error) from error
    except FAULTS as error:
        del sys.modules[name]
        raise UsageError(f"{path} cannot be imported: {raised(error)}") from error
    return module
