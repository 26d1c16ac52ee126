"""Frames to mp4 files, one per episode, written as they come."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator
from pathlib import Path
from types import TracebackType

import numpy as np

from p2prl.errors import MissingPackage, P2prlError, UsageError
from p2prl.learn.contracts import Array
from p2prl.packages import install_command

_PACKAGE = "p2prl[video]"


def check_encoder(flag: str) -> None:
    """Raises MissingPackage if no video can be written here."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise MissingPackage(f"{flag} needs a video encoder: {install_command(_PACKAGE)}", _PACKAGE)


def check_folder(folder: Path, flag: str) -> None:
    """Raises UsageError, which names `flag`, if a file stands where the folder or one above it is to be."""
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        raise UsageError(f"{flag}: {there} is a file; videos go into a folder")


def _make(folder: Path, flag: str) -> None:
    check_folder(folder, flag)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{flag}: the folder {folder} cannot be made: {error.strerror}") from error


class VideoFolder:
    """Writes `episode-0000.mp4` and so on into a folder.

    Args:
        flag: what the person typed for it, named where it cannot be.

    Raises:
        MissingPackage: the encoder is not installed.
        UsageError: no folder can be made there.
    """

    def __init__(self, folder: Path, fps: int, flag: str = "--record") -> None:
        check_encoder(flag)
        self._folder = folder
        self._fps = max(1, fps)
        self._episode = -1
        self._writer: Generator[None, Array | None, None] | None = None
        self.paths: list[Path] = []
        _make(folder, flag)

    def add(self, episode: int, frame: Array) -> None:
        """Append a frame, uint8 `[height, width, 3]`."""
        frame = np.ascontiguousarray(frame)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise P2prlError(
                f"the environment renders {frame.dtype} {frame.shape}, not frames of uint8 colours"
            )
        if episode != self._episode:
            self._finish()
            self._begin(episode, frame)
        assert self._writer is not None
        self._writer.send(frame)

    def _begin(self, episode: int, frame: Array) -> None:
        import imageio_ffmpeg

        path = self._folder / f"episode-{episode:04d}.mp4"
        size = (frame.shape[1], frame.shape[0])
        # Blocks of 2 are what yuv420p needs; the encoder's default of 16 would rescale most environments.
        self._writer = imageio_ffmpeg.write_frames(
            str(path), size, fps=self._fps, codec="libx264", macro_block_size=2, ffmpeg_log_level="error"
        )
        self._writer.send(None)
        self._episode = episode
        self.paths.append(path)

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> VideoFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish()
