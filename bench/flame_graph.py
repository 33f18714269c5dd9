"""A flame graph: collapsed stacks as one SVG file without scripts."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_WIDTH = 1600
_ROW = 17
_MARGIN = 10
_HEAD = 30
_SMALLEST = 0.4
"""Frames that would be narrower, in pixels, are left out."""
_CHARACTER = 6.6
"""The width of a character, in pixels."""


@dataclass(slots=True)
class _Frame:
    """A function, called by its parent frame."""

    name: str
    samples: int = 0
    children: dict[str, "_Frame"] = field(default_factory=dict)


def flame_graph(title: str, stacks: Iterable[str]) -> str:
    """The SVG of lines as in `outer;inner 12`: frames from the outermost on, and samples.

    A frame is as wide as its share of all samples; what it calls is above it.
    """
    root = _Frame("all")
    for line in stacks:
        stack, _, samples = line.rpartition(" ")
        if stack:
            _add(root, stack.split(";"), int(samples))
    depth = _depth(root)
    height = _HEAD + (depth + 1) * _ROW + _MARGIN
    size = f'width="{_WIDTH}" height="{height}"'
    heading = f"{escape(title)}: {root.samples} samples"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace">',
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="{_MARGIN}" y="19" font-size="14">{heading}</text>',
            '<g font-size="11">',
            *_boxes(root, root, _MARGIN, height - _MARGIN - _ROW),
            "</g></svg>\n",
        ]
    )


def _add(root: _Frame, names: list[str], samples: int) -> None:
    frame = root
    frame.samples += samples
    for name in names:
        frame = frame.children.setdefault(name, _Frame(name))
        frame.samples += samples


def _depth(frame: _Frame) -> int:
    return 1 + max((_depth(child) for child in frame.children.values()), default=0)


def _boxes(frame: _Frame, root: _Frame, x: float, y: float) -> Iterator[str]:
    """The frame, and above it what it calls."""
    width = frame.samples / max(root.samples, 1) * (_WIDTH - 2 * _MARGIN)
    if width < _SMALLEST:
        return
    share = f"{frame.samples / max(root.samples, 1):.1%}"
    label = frame.name[: int((width - 4) / _CHARACTER)] if width > 4 * _CHARACTER else ""
    yield (
        f"<g><title>{escape(frame.name)} ({frame.samples}, {share})</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 1}" '
        f'fill="{_colour(frame.name)}"/>'
        f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(label)}</text></g>'
    )
    for child in sorted(frame.children.values(), key=lambda child: child.name):
        yield from _boxes(child, root, x, y - _ROW)
        x += child.samples / max(root.samples, 1) * (_WIDTH - 2 * _MARGIN)


def _colour(name: str) -> str:
    """A warm colour; the same for the same function."""
    first, second = hashlib.sha256(name.encode()).digest()[:2]
    return f"rgb({205 + first % 50},{90 + second % 130},60)"
