"""Plots as SVG, by hand: a report is one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 12, 34
COLORS = ("#1f6feb", "#d4351c", "#00703c", "#6f42c1")


def lines(
    curves: Mapping[str, Points], *, x: str, y: str, top: float, marks: Mapping[str, float]
) -> str:
    """Curves over one axis, with a vertical line at each mark."""
    end = max([at for points in curves.values() for at, _ in points] + [*marks.values(), 1e-9])
    parts = [_frame(x, y, end, top)]
    for place, (name, points) in enumerate(curves.items()):
        color = COLORS[place % len(COLORS)]
        path = " ".join(f"{_x(at, end):.1f},{_y(value, top):.1f}" for at, value in points)
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{path}"/>')
        left = LEFT + 8 + 130 * place
        parts.append(f'<rect x="{left}" y="{TOP}" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{left + 14}" y="{TOP + 9}">{escape(name)}</text>')
    for name, mark in marks.items():
        at = _x(mark, end)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
            f'stroke="#666" stroke-dasharray="4 3"/>'
            f'<text x="{at + 4:.1f}" y="{HEIGHT - BOTTOM - 6}">{escape(name)}</text>'
        )
    return _svg(parts, f"{y} over {x}")


def bars(values: Mapping[str, float], *, x: str, y: str) -> str:
    """A bar for each name."""
    top = max([*values.values(), 1.0])
    parts = [_frame(x, y, None, top)]
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    for place, (name, value) in enumerate(values.items()):
        at = LEFT + place * step
        parts.append(
            f'<rect x="{at + step * 0.15:.1f}" y="{_y(value, top):.1f}" width="{step * 0.7:.1f}" '
            f'height="{HEIGHT - BOTTOM - _y(value, top):.1f}" fill="{COLORS[0]}"/>'
            f'<text x="{at + step / 2:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return _svg(parts, f"{y} by {x}")


def _x(value: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / end


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(value, top) / top


def _frame(x: str, y: str, end: float | None, top: float) -> str:
    base = HEIGHT - BOTTOM
    parts = [
        f'<path d="M{LEFT},{TOP}V{base}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x)}</text>',
        f'<text x="12" y="{base / 2}" text-anchor="middle" '
        f'transform="rotate(-90 12 {base / 2})">{escape(y)}</text>',
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 9}" text-anchor="end">{top:.3g}</text>',
    ]
    if end is not None:
        parts.append(
            f'<text x="{WIDTH - RIGHT}" y="{base + 14}" text-anchor="end">{end:.3g}</text>'
        )
    return "".join(parts)


def _svg(parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )
