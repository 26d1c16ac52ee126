"""What people type where a folder, or a host's name, is wanted: told apart without looking. A leaf."""

from __future__ import annotations

from pathlib import Path

from p2prl.errors import UsageError

_MOST_NAMES = 6


def looks_like_path(text: str) -> bool:
    """True for what is a path, whether it is there or not; no host's name or address looks like one.

    >>> [looks_like_path(text) for text in ("results/a", "./a", "~", "C:\\\\runs", "lab", "192.0.2.7:47800")]
    [True, True, True, True, False, False]
    """
    return text.startswith((".", "~")) or "/" in text or "\\" in text


def existing_folder(text: str | Path) -> Path:
    """The folder that a path names, absolute. Raises UsageError, saying what is there instead."""
    folder = tidy(Path(text).expanduser())
    if folder.is_dir():
        return folder
    if folder.exists():
        raise UsageError(f"{folder} is not a folder: name a run's folder, or the folder that holds runs")
    raise UsageError(f"no such folder: {folder}; {_what_is_there(folder)}")


def refuse_path(text: str | None) -> None:
    """Raises UsageError if a path is given where a host is wanted: no search would find it."""
    if text is not None and looks_like_path(text):
        raise UsageError(
            f"{text} is a path; wanted is a host's name or address, as in lab or 192.0.2.7:47800"
        )


def tidy(path: Path) -> Path:
    """The path made absolute, without `..`: as people are to read it."""
    return path.resolve() if ".." in path.parts else path.absolute()


def _what_is_there(folder: Path) -> str:
    """Of the nearest folder above that exists: the folders in it."""
    there = next((above for above in folder.parents if above.is_dir()), None)
    if there is None:
        return "name a run's folder, or the folder that holds runs"
    try:
        names = sorted(entry.name for entry in there.iterdir() if entry.is_dir() and entry.name[:1] != ".")
    except OSError as error:
        return f"{there} cannot be read ({error.strerror})"
    if not names:
        return f"{there} holds no folder"
    shown = [*names[:_MOST_NAMES], *(["…"] if len(names) > _MOST_NAMES else [])]
    return f"{there} holds {', '.join(shown)}"
