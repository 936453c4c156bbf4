"""The ledgers of the source projects name only what exists, and leave no statement out."""

import json
from pathlib import Path

import pytest

from scripts.docs import sources
from scripts.docs.sources import COUNTS, Item, LedgerError

LEDGERS = sources.ledger_files()


@pytest.mark.parametrize("name", COUNTS)
def test_every_file_heading_and_test_that_a_ledger_names_exists(name: str) -> None:
    items = sources.read(LEDGERS[name]).items if name in LEDGERS else ()
    wrong = [f"{item.id}: {fact}" for item in items for fact in sources.problems(item)]
    assert not wrong, "\n".join(wrong)


def test_the_documents_make_296_statements() -> None:
    assert sum(count for _, count in COUNTS.values()) == 296


def written(folder: Path, *, ids: range | list[int], stem: str = "mobileposer") -> Path:
    """Write a ledger with the statements of these numbers."""
    letter = COUNTS[stem][0] if stem in COUNTS else "X"
    rows = "".join(f"  - {{id: {letter}{n}, item: a, answer: answered, note: b}}\n" for n in ids)
    path = folder / f"{stem}.yaml"
    path.write_text(f"project: MobilePoser\nitems:\n{rows}")
    return path


@pytest.mark.parametrize(
    ("ids", "fact"),
    [
        (list(range(1, 51)), "missing: M51"),
        ([*range(1, 52), 7], "twice: M7"),
        (list(range(1, 53)), "not in the document: M52"),
    ],
)
def test_a_ledger_has_every_id_once(tmp_path: Path, ids: list[int], fact: str) -> None:
    with pytest.raises(LedgerError, match=f"mobileposer.yaml: {fact}"):
        sources.read(written(tmp_path, ids=ids))


def test_a_ledger_of_an_unknown_project_is_refused(tmp_path: Path) -> None:
    written(tmp_path, ids=[1], stem="other")
    with pytest.raises(LedgerError, match="no project is called other"):
        sources.ledger_files(tmp_path)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("project: x\nitems: [", "while parsing"),
        ("project: x\nitems: [{id: M1, item: a, answer: partially}]", r"items\.0\.answer"),
        ("project: x\nitems: [{id: M1, item: a, answer: built}]", "M1 is built and needs where and test"),
        ("project: x\nitems: [{id: M1, item: a, answer: measured}]", "M1 is measured and needs figure"),
        ("project: x\nitems: [{id: M1, item: a, answer: answered}]", "M1 is answered and needs note"),
    ],
)
def test_a_malformed_ledger_is_refused_with_its_place(tmp_path: Path, text: str, fact: str) -> None:
    path = tmp_path / "mobileposer.yaml"
    path.write_text(text)
    with pytest.raises(LedgerError, match=fact):
        sources.read(path)


def item(**more: object) -> Item:
    proof = {"where": ["page.md"], "test": ["test_it.py::test_it"]}
    return Item.model_validate({"id": "M1", "item": "a", "answer": "built", **proof, **more})


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        ({"where": ["gone.py"]}, "there is no gone.py"),
        ({"where": ["page.md#b"]}, "page.md has no heading #b"),
        ({"test": ["gone.py::test_it"]}, "there is no file gone.py"),
        ({"test": ["test_it.py::test_gone"]}, "test_it.py has no test_gone"),
        ({"test": ["test_it.py"]}, "'test_it.py' is not FILE::test_name"),
        ({"answer": "measured", "figure": "3 x"}, "figure '3 x' names no file"),
        (
            {"answer": "measured", "figure": "3 x, bench/results/a.json"},
            "there is no file bench/results/a.json",
        ),
        ({"note": "see bench/results/a.json"}, "there is no file bench/results/a.json"),
        (
            {"test": ["tests/gpu/test_it.py::test_it"]},
            "all of its tests are skipped without a device: tests/gpu/test_it.py::test_it",
        ),
    ],
)
def test_what_does_not_exist_is_a_problem(tmp_path: Path, wrong: dict[str, object], fact: str) -> None:
    (tmp_path / "page.md").write_text("# A b\n")
    for file in (tmp_path / "test_it.py", tmp_path / "tests" / "gpu" / "test_it.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("class TestIt:\n    def test_it(self): ...\n")
    assert list(sources.problems(item(where=["page.md#a-b"]), tmp_path)) == []
    assert list(sources.problems(item(**wrong), tmp_path)) == [fact]


@pytest.mark.parametrize(
    ("figure", "wrong"),
    [
        ("708 to 2,104 windows/s, 1.5 x", []),
        ("with 8 processes", []),
        ("708.4 windows/s", []),
        ("709 to 2,104 windows/s", ["709"]),
        ("708.3 of 2,103", ["708.3", "2,103"]),
        ("3 x", ["3"]),
    ],
)
def test_a_figure_says_what_was_measured(tmp_path: Path, figure: str, wrong: list[str]) -> None:
    found = {"label": "8 processes", "arms": [{"rate": 708.41, "ratio": 1.4975}, {"rate": 2104, "met": True}]}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "a.json").write_text(json.dumps(found))
    (tmp_path / "page.md").touch()
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    told = list(sources.problems(item(answer="measured", figure=f"{figure}, bench/a.json"), tmp_path))
    assert told == [f"{number} of figure '{figure}, bench/a.json' was not measured" for number in wrong]


def test_the_page_counts_the_answers_and_links_pages(tmp_path: Path) -> None:
    path = written(tmp_path, ids=range(1, 51))
    built = "{id: M51, item: 'a | b', answer: built, where: [docs/a.md#b, x.py], test: [t.py::test_t]}"
    path.write_text(f"{path.read_text()}  - {built}\n")
    text = sources.reference(tmp_path)
    assert "| [MobilePoser](#mobileposer) | 1 | 0 | 50 | 51 |\n| all | 1 | 0 | 50 | 51 |" in text
    assert "| M51 | a \\| b | built | [a.md#b](../docs/a.md#b)<br>`x.py` | `t.py::test_t` |" in text
