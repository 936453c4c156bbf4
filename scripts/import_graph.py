"""Draw which package of runner imports which, layer by layer: ``make graph``.

The layers come from the import-linter contract in ``pyproject.toml``, the imports from grimp, which
import-linter uses itself. The same imports always give the same picture, so a test can compare the
committed picture with the code.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

import grimp

ROOT: Final = Path(__file__).parent.parent
PICTURE: Final = ROOT / "docs/images/import-graph.svg"
CONTRACT: Final = "runner is layered"

FONT: Final = 'font-family="ui-monospace, monospace" font-size="12"'
CHARACTER: Final = 7.2  # width in px, at 12 px of a monospace font
LINE: Final = 18
PADDING: Final = 14
COLUMN_GAP: Final = 60
LAYER_GAP: Final = 26
LANE: Final = 9
WIDTH: Final = 620  # of a layer
COLOURS: Final = ("#1f6feb", "#9a6700", "#1a7f37", "#8250df", "#cf222e", "#57606a", "#bf3989", "#0a7d91")

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ImportGraph:
    """The packages of runner in their layers, and which imports which."""

    layers: tuple[tuple[str, ...], ...]  # from top to bottom; packages that stand side by side together
    members: Mapping[str, tuple[str, ...]]  # the modules and packages directly in each package
    edges: frozenset[Edge]


class Box(NamedTuple):
    """Position of a package in the drawing."""

    left: float
    top: float
    width: float
    height: float
    lines: tuple[str, ...]

    @property
    def right(self) -> float:
        return self.left + self.width


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(draw(read_graph()), encoding="utf-8")


def read_graph() -> ImportGraph:
    """Return the import graph of the code as it is now."""
    graph = grimp.build_graph("runner", cache_dir=None)
    edges, members = set(), dict[str, set[str]]()
    for module in sorted(graph.modules):
        package, member = _split(module)
        if member:
            members.setdefault(package, set()).add(member)
        for imported in graph.find_modules_directly_imported_by(module):
            target = _split(imported)[0]
            if package and target and package != target:
                edges.add((package, target))
    found = {package: tuple(sorted(names)) for package, names in members.items()}
    return ImportGraph(_read_layers(), found, frozenset(edges))


def _split(module: str) -> tuple[str, str]:
    """Return the package of runner that contains a module, and the module's name in it."""
    _, package, member, *_ = (*module.split("."), "", "")
    return package, member


def _read_layers() -> tuple[tuple[str, ...], ...]:
    """Return the layers of the contract; a package that the contract exempts stands beside the top layer."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if each["name"] == CONTRACT)
    layers = [tuple(re.split(r"\s*\|\s*", layer)) for layer in contract["layers"]]
    return ((*layers[0], *contract.get("exhaustive_ignores", ())), *layers[1:])


def draw(graph: ImportGraph) -> str:
    """Return the picture as SVG.

    Each arrow has a lane of its own beside the layers: on the right, or on the left where it begins or
    ends at the second package of a layer.
    """
    beside = {layer[-1] for layer in graph.layers if len(layer) > 1}
    rows = {package: row for row, layer in enumerate(graph.layers) for package in layer}
    edges = sorted(graph.edges, key=lambda edge: (rows[edge[0]], rows[edge[1]], edge))
    level = [edge for edge in edges if rows[edge[0]] == rows[edge[1]]]
    left = [edge for edge in edges if edge not in level and beside & set(edge)]
    right = [edge for edge in edges if edge not in level and edge not in left]
    boxes = dict(_place(graph, (len(left) + 2) * LANE))
    colours = {package: COLOURS[number % len(COLOURS)] for number, package in enumerate(rows)}
    shapes = [shape for name, box in boxes.items() for shape in _draw_box(name, box)]
    shapes += [_draw_level(edge, boxes, colours) for edge in level]
    for side, lanes in (("left", left), ("right", right)):
        shapes += _draw_lanes(side, lanes, boxes, colours)
    width = max(box.right for box in boxes.values()) + (len(right) + 2) * LANE
    height = max(box.top + box.height for box in boxes.values()) + PADDING
    markers = [_draw_marker(package, colour) for package, colour in colours.items()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {FONT}>'
    title = "<title>Imports between the packages of runner, by layer</title>"
    ground = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([head, title, ground, f"<defs>{''.join(markers)}</defs>", *shapes, "</svg>\n"])


def _place(graph: ImportGraph, left: float) -> Iterator[tuple[str, Box]]:
    """Yield the box of each package; the second package of a layer stands on the left of the first."""
    top = float(PADDING)
    for layer in graph.layers:
        width = (WIDTH - COLUMN_GAP * (len(layer) - 1)) / len(layer)
        ports = max(_ports(graph.edges, package) for package in layer)
        wrapped = {package: _wrap(graph.members[package], width) for package in layer}
        lines = max(map(len, wrapped.values())) + 1
        height = max(lines * LINE + PADDING, (ports + 1) * LANE)
        for column, package in enumerate(reversed(layer)):
            at = left + column * (width + COLUMN_GAP)
            yield package, Box(at, top, width, height, wrapped[package])
        top += height + LAYER_GAP


def _ports(edges: frozenset[Edge], package: str) -> int:
    return sum(package in edge for edge in edges)


def _wrap(names: Sequence[str], width: float) -> tuple[str, ...]:
    """Return names as lines that fit into a box."""
    lines = [""]
    for name in names:
        longer = f"{lines[-1]}  {name}".strip()
        if lines[-1] and len(longer) * CHARACTER > width - 2 * PADDING:
            lines.append(name)
        else:
            lines[-1] = longer
    return tuple(lines)


def _draw_box(name: str, box: Box) -> Iterator[str]:
    yield (
        f'<rect id="{name}" x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{box.height:g}"'
        ' rx="6" fill="#f6f8fa" stroke="#8c959f"/>'
    )
    left, top = box.left + PADDING, box.top + LINE
    yield f'<text x="{left:g}" y="{top:g}" font-weight="bold">{escape(name)}</text>'
    for number, line in enumerate(box.lines, 1):
        yield f'<text x="{left:g}" y="{top + number * LINE:g}" fill="#57606a">{escape(line)}</text>'


def _draw_level(edge: Edge, boxes: Mapping[str, Box], colours: Mapping[str, str]) -> str:
    """Draw the arrow between two packages of one layer."""
    source, target = (boxes[name] for name in edge)
    middle = source.top + source.height / 2
    start, end = (source.left, target.right) if source.left > target.left else (source.right, target.left)
    return _draw_arrow(edge, f"M{start:g} {middle:g}H{end:g}", colours)


def _draw_lanes(
    side: str, edges: Sequence[Edge], boxes: Mapping[str, Box], colours: Mapping[str, str]
) -> Iterator[str]:
    """Draw arrows that leave their boxes on one side; those that go farthest take the outer lanes."""
    sign = -1 if side == "left" else 1
    sides = [box.left if side == "left" else box.right for box in boxes.values()]
    outside = min(sides) if side == "left" else max(sides)
    by_length = sorted(edges, key=lambda edge: (boxes[edge[1]].top - boxes[edge[0]].top, edge))
    lanes = {edge: outside + sign * (number + 1.5) * LANE for number, edge in enumerate(by_length)}
    used = dict.fromkeys(boxes, 0)
    heights = {}
    # An arrow enters above those that leave; of those that enter, the one from the nearest layer comes first.
    for edge in sorted(edges, key=lambda edge: (boxes[edge[0]].top, edge), reverse=True):
        used[edge[1]] += 1
        heights[edge, edge[1]] = boxes[edge[1]].top + used[edge[1]] * LANE
    for edge in sorted(edges, key=lambda edge: (boxes[edge[1]].top, edge), reverse=True):
        used[edge[0]] += 1
        heights[edge, edge[0]] = boxes[edge[0]].top + used[edge[0]] * LANE
    for edge in edges:
        start, end = ((box.left if side == "left" else box.right) for box in (boxes[edge[0]], boxes[edge[1]]))
        path = f"M{start:g} {heights[edge, edge[0]]:g}H{lanes[edge]:g}V{heights[edge, edge[1]]:g}H{end:g}"
        yield _draw_arrow(edge, path, colours)


def _draw_arrow(edge: Edge, path: str, colours: Mapping[str, str]) -> str:
    source, target = edge
    return (
        f'<path id="{source}-imports-{target}" d="{path}" fill="none" stroke="{colours[source]}"'
        f' marker-end="url(#from-{source})"><title>{source} imports {target}</title></path>'
    )


def _draw_marker(package: str, colour: str) -> str:
    return (
        f'<marker id="from-{package}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
    )


if __name__ == "__main__":
    main()
