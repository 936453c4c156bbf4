"""The diagram of the imports in the documentation shows what the code imports."""

from scripts.docs.page import BLOCK, fill
from scripts.import_graph import PAGE, ImportGraph, draw, read_graph


def test_the_page_shows_the_imports_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [name for _, name in BLOCK.findall(page)] == ["imports"]
    assert fill(page, lambda _: draw(read_graph())) == page, "the imports have changed; make graph draws them"


def test_no_arrow_goes_up() -> None:
    graph = read_graph()
    rows = {package: row for row, layer in enumerate(graph.layers) for package in layer}
    upwards = {edge for edge in graph.edges if rows[edge[0]] > rows[edge[1]]}
    # the client stands beside the layers, on base alone
    assert upwards == {("dashboard", "client"), ("server", "client")}


def test_each_package_has_a_line_with_what_it_imports() -> None:
    edges = {("cli", "client"), ("client", "base"), ("cli", "base")}
    graph = ImportGraph((("cli", "client"), ("base",)), frozenset(edges))
    lines = draw(graph).splitlines()
    assert lines[2:-1] == ["    cli --> client & base", "    client --> base", "    base"]
