"""Small charts as SVG: lines over a numeric axis, or over named places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 54, 44
COLOURS = {"ours": "#0b6e99", "peer": "#c4622d", "third": "#5a8f29", "mark": "#888888"}


@dataclass(frozen=True)
class Line:
    """Points `(x, y)` in data units; `low` and `high` are a bar per point, `hollow` the points drawn as rings."""

    points: Sequence[tuple[float, float]]
    colour: str
    label: str = ""
    dashed: bool = False
    dots: bool = False
    bars: Sequence[tuple[float, float]] = ()
    hollow: frozenset[int] = frozenset()


def chart(
    title: str,
    x_title: str,
    y_title: str,
    lines: Sequence[Line],
    places: Sequence[str] = (),
    floor: float | None = None,
) -> str:
    """The picture. With `places`, x counts them and they are the ticks; `floor` is the least y shown."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [
        y for line in lines for bar in line.bars for y in bar
    ]
    x0, x1 = (-0.4, len(places) - 0.6) if places else (0.0, max(xs, default=1.0) or 1.0)
    y0, y1 = min([*ys, *([] if floor is None else [floor])], default=0.0), max(ys, default=1.0)
    y1 += 0.05 * ((y1 - y0) or 1.0)

    def at(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x0) / (x1 - x0) * (WIDTH - _LEFT - _RIGHT)
        return round(across, 1), round(HEIGHT - _BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - _TOP - _BOTTOM), 1)

    parts = [_text(WIDTH / 2, 20, title, 14), _text(WIDTH / 2, HEIGHT - 8, x_title)]
    parts.append(f'<g transform="rotate(-90 14 {HEIGHT / 2})">{_text(14, HEIGHT / 2, y_title)}</g>')
    for y in _ticks(y0, y1):
        (left, height), (right, _) = at(x0, y), at(x1, y)
        parts.append(f'<path d="M{left} {height}H{right}" stroke="#dddddd"/>')
        parts.append(_text(_LEFT - 6, height + 4, _short(y), anchor="end"))
    named = list(enumerate(places)) if places else [(x, _short(x)) for x in _ticks(x0, x1)]
    parts += [_text(at(x, y0)[0], HEIGHT - _BOTTOM + 16, name) for x, name in named]
    for line in lines:
        parts += _drawn(line, at)
    parts += _legend(lines)
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {size} font-family="sans-serif">'
    return "\n".join([head, f'<rect {size} fill="#ffffff"/>', *parts, "</svg>\n"])


def _drawn(line: Line, at: Callable[[float, float], tuple[float, float]]) -> list[str]:
    spots = [at(x, y) for x, y in line.points]
    way = " ".join(f"{x},{y}" for x, y in spots)
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    parts = [f'<polyline points="{way}" fill="none" stroke="{line.colour}" stroke-width="1.6"{dash}/>']
    for (x, _), (low, high) in zip(line.points, line.bars, strict=False):
        (across, bottom), (_, top) = at(x, low), at(x, high)
        parts.append(
            f'<path d="M{across} {bottom}V{top}" stroke="{line.colour}" stroke-width="3" opacity="0.4"/>'
        )
    for index, (x, y) in enumerate(spots if line.dots else []):
        fill = "#ffffff" if index in line.hollow else line.colour
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="{line.colour}" stroke-width="1.6"/>'
        )
    return parts


def _legend(lines: Sequence[Line]) -> list[str]:
    named = list({line.label: line for line in lines if line.label}.values())
    parts, x = [], _LEFT
    for line in named:
        parts.append(f'<path d="M{x} 36h18" stroke="{line.colour}" stroke-width="2"/>')
        parts.append(_text(x + 24, 40, line.label, anchor="start"))
        x += 48 + 6 * len(line.label)
    return parts


def _text(x: float, y: float, text: str, size: int = 11, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """Three to nine round numbers in between."""
    raw = (high - low) / 8
    unit = 10.0 ** len(str(int(raw))) / 10 if raw >= 1 else 0.1 if raw >= 0.1 else 0.01
    step = next((unit * factor for factor in (1, 2, 5) if unit * factor >= raw), unit * 10)
    first = -int(-low // step)
    return [round(step * k, 6) for k in range(first, int(high // step) + 1)]


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
