"""The committed picture of the imports shows what the code imports."""

import re

from scripts.import_graph import PICTURE, Edge, ImportGraph, draw, read_graph


def read_picture() -> tuple[frozenset[Edge], frozenset[str]]:
    """Return the edges and the packages that the committed picture shows."""
    text = PICTURE.read_text(encoding="utf-8")
    edges = re.findall(r'<path id="([a-z_]+)-imports-([a-z_]+)"', text)
    return frozenset(edges), frozenset(re.findall(r'<rect id="([a-z_]+)"', text))


def test_the_committed_picture_shows_the_imports_of_the_code() -> None:
    graph = read_graph()
    edges, packages = read_picture()
    assert edges == graph.edges, "the imports between packages have changed; make graph draws them anew"
    assert packages == set(graph.members), "the packages have changed; make graph draws them anew"


def test_no_arrow_goes_up() -> None:
    graph = read_graph()
    rows = {package: row for row, layer in enumerate(graph.layers) for package in layer}
    upwards = {edge for edge in graph.edges if rows[edge[0]] > rows[edge[1]]}
    # the client stands beside the layers, on base alone
    assert upwards == {("dashboard", "client"), ("server", "client")}


def test_the_same_imports_give_the_same_picture() -> None:
    members = {"cli": ("main",), "client": ("http",), "base": ("errors",)}
    edges = [("cli", "client"), ("client", "base"), ("cli", "base")]
    layers = (("cli", "client"), ("base",))
    picture = draw(ImportGraph(layers, members, frozenset(edges)))
    assert picture == draw(ImportGraph(layers, members, frozenset(reversed(edges))))
    assert 'id="cli-imports-client"' in picture
