"""Whether a window can open here, and how to draw pictures without one. A leaf."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping


def has_display(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> bool:
    """True if a window can be expected to open here."""
    if platform in ("win32", "darwin"):
        return True
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def draw_without_window(platform: str = sys.platform, environ: MutableMapping[str, str] = os.environ) -> None:
    """Where no window can open, tell SDL, with which many environments draw, not to look for one: it complains.

    What the person has set stays as it is.
    """
    if not has_display(platform, environ):
        environ.setdefault("SDL_VIDEODRIVER", "dummy")
