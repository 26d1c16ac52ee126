"""A part of the terminal that is redrawn in place, with log lines printed above it.

Nothing runs beside the caller: it draws when something is told and half a second has passed, so that a flood
of log lines costs two redraws a second, and no thread is left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from rich.text import Text

from p2prl.cli.lines import log_parts

#: (width, height) -> what to draw; asked anew for each drawing, so that a resized terminal is filled rightly.
Build = Callable[[int, int], RenderableType]

_LEVEL_STYLES = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red"}
_INTERVAL_S = 0.5
_PIPE_WIDTH = 200
#: Columns that stay free: a terminal echoes Ctrl-C as `^C` after the last line, and must not wrap, or the view is torn.
_ECHO = 3


def plain_console() -> Console:
    """For a table that is printed once. In a pipe there is no width to fit: a cut address helps nobody."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def log_text(level: str, source: str, text: str) -> Text:
    """A log line as a person sees it."""
    when, where, what = log_parts(source, text)
    return Text(when, "dim").append(where, "cyan").append(what, _LEVEL_STYLES.get(level, ""))


class Screen:
    """Owns the terminal until it is closed.

    Args:
        console: where to draw.
        now: a clock in seconds; only differences matter.
    """

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._now = now
        self._live: Live | None = None
        self._build: Build | None = None
        self._lines: list[Text] = []
        self._drawn = -_INTERVAL_S + now()
        #: Columns of each line that stands on the terminal since the last drawing.
        self._standing: list[int] = []

    def log(self, level: str, source: str, text: str) -> None:
        """Print a line above the view: at once if it is an error or there is no view, else when drawn."""
        self._lines.append(log_text(level, source, text))
        if level == "error" or self._live is None:
            self.draw()
        else:
            self._draw_if_due()

    def show(self, build: Build) -> None:
        """Make `build` the view."""
        self._build = build
        self._draw_if_due()

    def draw(self) -> None:
        """Print the waiting lines and redraw the view."""
        self._drawn = self._now()
        lines, self._lines = self._lines, []
        if self._build is not None and self._live is None:
            self._live = Live(self, console=self.console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._erase_wrapped()
        if lines:
            self.console.print(Group(*lines))  # rich draws the view again below them
        elif self._live is not None:
            self._live.refresh()

    def _erase_wrapped(self) -> None:
        """A terminal that was made narrower has wrapped what stands there: rich, which erases a row for each line that
        it drew, would leave the first ones. So the further rows are erased here, from below."""
        width = max(1, self.console.width)
        rows = sum(max(1, -(-columns // width)) for columns in self._standing)
        for _ in range(min(rows, self.console.height) - len(self._standing)):
            self.console.control(Control((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The newest view, whenever rich draws: without blanks at the ends of lines, which would wrap, too."""
        self._standing = []
        if self._build is None:
            return
        height = max(8, console.size.height - 1)
        view = self._build(options.max_width - _ECHO, height)
        lines = [_stripped(line) for line in console.render_lines(view, options, pad=False)][:height]
        self._standing = [Segment.get_line_length(line) for line in lines]
        for index, line in enumerate(lines):
            yield from [Segment.line()] if index else []
            yield from line

    def close(self) -> None:
        """Leave the last view on the terminal and give the terminal back."""
        self.draw()
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._build, self._standing = None, []

    def _draw_if_due(self) -> None:
        if self._now() - self._drawn >= _INTERVAL_S:
            self.draw()


def _stripped(line: list[Segment]) -> list[Segment]:
    """Without the blanks at its end."""
    line = list(line)
    while line and not line[-1].control:
        text, style, _ = line[-1]
        if kept := text.rstrip(" "):
            line[-1] = Segment(kept, style)
            break
        line.pop()
    return line
