"""Nothing that crosses the wire or lies in a run's folder is ever executed: no module here can load code from data."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent.parent
_SOURCES = ("p2prl", "agents", "envs")
#: Modules that make objects, and so run code, out of bytes.
_MODULES = {
    "pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle",
    "yaml", "multiprocessing", "concurrent.futures.process", "concurrent.futures.ProcessPoolExecutor", "xmlrpc", "code",
    "codeop", "runpy",
}  # fmt: skip
#: Those among them that nothing in this repository needs, its tests included: hostile bytes are in tests/hostile.py.
_PICKLERS = {
    "pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle",
}  # fmt: skip
_BUILTINS = {"eval", "exec", "compile", "__import__"}
#: Functions of libraries that unpickle, by the last part of their name and, if it is common, the one before.
_CALLS = {
    ("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "package"), ("torch", "jit"), ("np", "fromregex"),
    ("", "recv_pyobj"), ("", "send_pyobj"), ("", "read_pickle"), ("", "to_pickle"), ("", "unsafe_load"),
    ("", "full_load"), ("os", "system"), ("os", "popen"), ("", "import_string"),
    ("", "ProcessPoolExecutor"),
}  # fmt: skip


def executable(text: str) -> Iterator[tuple[int, str]]:
    """(line, what) for each thing in this source that could run what it reads."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if _forbidden(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from ((node.lineno, name) for name in names if _forbidden(name) or _parts(name) in _CALLS)
        elif isinstance(node, ast.Name) and node.id in _BUILTINS:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            before = node.value.id if isinstance(node.value, ast.Name) else ""
            if {(before, node.attr), ("", node.attr)} & _CALLS or (before, node.attr) == ("builtins", "eval"):
                yield node.lineno, f"{before}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell", "weights_only"):
            if not (
                isinstance(node.value, ast.Constant) and node.value.value is (node.arg == "weights_only")
            ):
                yield node.value.lineno, node.arg
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in _MODULES - {"code"}
        ):
            yield node.lineno, f"{node.value!r} as text"  # importlib.import_module("pickle")


def _forbidden(name: str) -> bool:
    return any(name == module or name.startswith(module + ".") for module in _MODULES)


def _parts(name: str) -> tuple[str, str]:
    before, _, last = name.rpartition(".")
    return before.rpartition(".")[2], last


def test_no_source_can_run_what_it_reads() -> None:
    files = [path for source in _SOURCES for path in sorted((_ROOT / source).rglob("*.py"))]
    assert len(files) > 100
    assert _found(files) == []


def test_no_test_imports_a_pickler() -> None:
    files = [path for source in ("tests", "scripts") for path in sorted((_ROOT / source).rglob("*"))]
    python = [path for path in files if path.is_file() and _is_python(path)]
    assert len(python) > 100
    imported = [found for found in _found(python) if found.rpartition(" ")[2].partition(".")[0] in _PICKLERS]
    assert imported == []


def _found(files: Iterable[Path]) -> list[str]:
    return [
        f"{path.relative_to(_ROOT)}:{line}: {what}"
        for path in files
        for line, what in executable(path.read_text(encoding="utf-8"))
    ]


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python3")


def test_scripts_read_arrays_and_no_objects() -> None:
    """The bench keeps frames in files: numpy is told each time that nothing in them may be unpickled."""
    loads = 0
    for path in sorted((_ROOT / "scripts").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
                told = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert told.get("allow_pickle") == "False", f"{path.name} line {node.lineno}"
                loads += 1
    assert loads


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import os, marshal as m",
        "from cloudpickle import loads",
        "def late():\n    import shelve",
        "import yaml",
        "from multiprocessing.connection import Client",
        "from concurrent.futures import ProcessPoolExecutor",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "eval('1')",
        "run = exec",
        "__import__('os')",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import numpy as np\nnp.load('x')",
        "np.lib.format.open_memmap(x, allow_pickle=True)",
        "torch.something(x, weights_only=False)",
        "socket.recv_pyobj()",
        "subprocess.run(x, shell=True)",
        "importlib.import_module('pickle')",
    ],
)
def test_each_way_would_be_seen(text: str) -> None:
    assert list(executable(text))


def test_what_is_harmless_is_not_reported() -> None:
    text = "import re\nre.compile('x')\nlearner.load(state)\njson.loads('1')\nsubprocess.run(x, shell=False)"
    assert list(executable(text)) == []
