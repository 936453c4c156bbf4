"""Draw which package of runner imports which, layer by layer: ``make graph``.

The layers come from the import-linter contract in ``pyproject.toml``, the imports from grimp, which
import-linter uses itself. The same imports always give the same diagram, so a test can compare that of the
page with the code.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import grimp

from scripts.docs.page import ROOT, fill

PAGE: Final = ROOT / "docs/explanation/architecture.md"
CONTRACT: Final = "runner is layered"

Edge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ImportGraph:
    """The packages of runner in their layers, and which imports which."""

    layers: tuple[tuple[str, ...], ...]  # from top to bottom; packages that stand side by side together
    edges: frozenset[Edge]


def main() -> None:
    """Write the diagram into its page."""
    diagram = draw(read_graph())
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), lambda _: diagram), encoding="utf-8")


def read_graph() -> ImportGraph:
    """Return the import graph of the code as it is now."""
    graph = grimp.build_graph("runner", cache_dir=None)
    edges = {
        (_package(module), _package(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return ImportGraph(_read_layers(), frozenset(edge for edge in edges if all(edge) and edge[0] != edge[1]))


def _package(module: str) -> str:
    """Return the package of runner that contains a module."""
    return module.removeprefix("runner").removeprefix(".").partition(".")[0]


def _read_layers() -> tuple[tuple[str, ...], ...]:
    """Return the layers of the contract; a package that the contract exempts stands beside the top layer."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    contract = next(each for each in contracts if each["name"] == CONTRACT)
    layers = [tuple(re.split(r"\s*\|\s*", layer)) for layer in contract["layers"]]
    return ((*layers[0], *contract.get("exhaustive_ignores", ())), *layers[1:])


def draw(graph: ImportGraph) -> str:
    """Return the diagram as a block of Mermaid."""
    return "\n".join(["```mermaid", "flowchart TB", *_lines(graph), "```\n"])


def _lines(graph: ImportGraph) -> Iterator[str]:
    order = [package for layer in graph.layers for package in layer]
    for package in order:
        imported = [each for each in order if (package, each) in graph.edges]
        yield f"    {package} --> {' & '.join(imported)}" if imported else f"    {package}"


if __name__ == "__main__":
    main()
