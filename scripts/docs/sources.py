"""The generated part of ``provenance/README.md``: each statement of the five source documents, answered.

``provenance/sources/PROJECT.yaml`` holds the items of one project.  A project without a file is left out.
"""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jobs.contract import SWITCHES
from scripts.docs.page import PROVENANCE, ROOT
from scripts.mutate_switches import TESTS

LEDGERS: Final = PROVENANCE / "sources"

COUNTS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "mobileposer": ("M", 51),
        "gogooku3": ("G", 66),
        "gogo2": ("T", 61),
        "lmol": ("L", 67),
        "agi2": ("A", 51),
    }
)
"""By file name: the letter of a project's ids, and how many statements its document makes."""

MEANINGS: Final = MappingProxyType(
    {
        "built": "it is a part of the runner, and the named test fails without it",
        "measured": "the named figure was measured here, with equal threads and every switch in force in"
        " which the arms differ; the file holds every single measurement",
        "answered": "it is not a part of the runner, and the note says why",
    }
)

DEVICE_TESTS: Final = "tests/gpu/"

_FILE: Final = re.compile(r"[\w./-]+/[\w.-]+\.[a-z]{2,5}\b")
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")


class LedgerError(Exception):
    """A ledger states what is not so; the text is one line."""


class Item(BaseModel):
    """One statement of a source document."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    item: str = Field(min_length=1)
    answer: Literal["built", "measured", "answered"]
    where: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    figure: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _has_its_proof(self) -> Self:
        needed = {"built": ("where", "test"), "measured": ("figure",), "answered": ("note",)}
        missing = [name for name in needed[self.answer] if not getattr(self, name)]
        if missing:
            raise ValueError(f"{self.id} is {self.answer} and needs {' and '.join(missing)}")
        return self


class Ledger(BaseModel):
    """All statements of one source document."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: str
    items: tuple[Item, ...]


def ledger_files(folder: Path = LEDGERS) -> dict[str, Path]:
    """Return the ledgers that exist, in the order of the projects.

    Raises:
        LedgerError: a file has the name of no project.
    """
    there = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if strangers := there.keys() - COUNTS.keys():
        raise LedgerError(f"{folder}: no project is called {', '.join(sorted(strangers))}")
    return {name: there[name] for name in COUNTS if name in there}


def read(path: Path) -> Ledger:
    """Return a ledger whose ids are complete.

    Raises:
        LedgerError: it is malformed, or an id is missing, doubled or unknown.
    """
    try:
        ledger = Ledger.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise LedgerError(f"{path.name}: {where}: {first['msg']}") from error
    except yaml.YAMLError as error:
        raise LedgerError(f"{path.name}: {' '.join(str(error).split())}") from error
    letter, count = COUNTS[path.stem]
    wanted = {f"{letter}{number}" for number in range(1, count + 1)}
    seen = Counter(item.id for item in ledger.items)
    for what, ids in (
        ("missing", wanted - seen.keys()),
        ("not in the document", seen.keys() - wanted),
        ("twice", {id_ for id_, times in seen.items() if times > 1}),
    ):
        if ids:
            raise LedgerError(f"{path.name}: {what}: {', '.join(sorted(ids, key=_number))}")
    return ledger


def _number(id_: str) -> tuple[int, str]:
    digits = id_[1:]
    return (int(digits) if digits.isdecimal() else 0, id_)


def switches_of(item: Item) -> list[str]:
    """Return the switches that an item names: as ``switch: value``, or if the name has an underscore."""
    text = " ".join([item.item, item.note, *item.where])
    return [name for name in SWITCHES if re.search(rf"\b{name}{'' if '_' in name else ':'}(?!\w)", text)]


def problems(item: Item, root: Path = ROOT) -> Iterator[str]:
    """Yield what an item names and what is not so: files, anchors of pages, tests, measured numbers."""
    if item.answer == "built":
        proofs = {name: TESTS[name] for name in switches_of(item)}
        yield from (
            f"names the switch {name}, and not the test that fails without it: {test}"
            for name, test in proofs.items()
            if test not in item.test
        )
    for place in item.where:
        yield from _place_problem(place, root)
    for test in item.test:
        yield from problems_of_test(test, root)
    if item.test and all(test.startswith(DEVICE_TESTS) for test in item.test):
        yield f"all of its tests are skipped without a device: {', '.join(item.test)}"
    named = _FILE.findall(item.figure)
    if item.answer == "measured" and not named:
        yield f"figure {item.figure!r} names no file"
    missing = [file for file in (*named, *_FILE.findall(item.note)) if not (root / file).is_file()]
    yield from (f"there is no file {file}" for file in missing)
    if named and not missing:
        yield from _figure_problem(item.figure, named, root)
    for text in () if missing else (item.figure, item.note):
        for file in _FILE.findall(text):
            if file.endswith(".json"):
                yield from (f"{file}: {fact}" for fact in unequal_arms(text, root / file))


def _figure_problem(figure: str, named: Iterable[str], root: Path) -> Iterator[str]:
    """Yield the numbers of a figure that none of its measurements has, to the digits that are shown."""
    measured = set().union(*(_measured(root / file) for file in named))
    for number in _NUMBER.findall(_FILE.sub("", figure)):
        value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
        if not any(abs(found - value) <= 0.5000001 * 10**-digits for found in measured):
            yield f"{number} of figure {figure!r} was not measured"


def unequal_arms(figure: str, path: Path) -> Iterator[str]:
    """Yield the reasons why the arms of a measurement that a figure quotes cannot be compared.

    They have other numbers of threads, or one of them did not run with the switches in which they differ.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    arms = content.get("arms", []) if isinstance(content, dict) else []
    quoted = [arm for arm in arms if "effective" in arm and f"{arm['items_per_s']:,.0f} (" in figure]
    if threads := unequal_threads(quoted):
        yield f"arms with other numbers of threads are compared: {threads}"
    for arm, name, got, wanted in not_in_force(quoted):
        yield f"{arm}: {name} was {got} and not {wanted}, in which the arms should differ"


def unequal_threads(arms: Sequence[Mapping[str, Any]]) -> str:
    """Return the threads of each arm, empty if they are equal."""
    counts = [arm["effective"]["threads"] for arm in arms]
    told = (f"{arm['name']} {count}" for arm, count in zip(arms, counts, strict=True))
    return ", ".join(told) if len(set(counts)) > 1 else ""


def not_in_force(arms: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Yield (arm, switch, applied, requested) of each switch in which arms should differ, and do not."""
    switches = [arm["effective"]["switches"] for arm in arms]
    for name in sorted(set[str]().union(*switches)):
        if len({found.get(name, {}).get("requested") for found in switches}) < 2:
            continue
        for arm, found in zip(arms, switches, strict=True):
            if name in found and not _as_requested(found[name]):
                yield arm["name"], name, found[name]["applied"], found[name]["requested"]


def _as_requested(switch: Mapping[str, str | None]) -> bool:
    """Return True if a switch was in force, or came to a value as it was left to."""
    applied, requested = switch.get("applied"), switch.get("requested")
    return applied in {None, requested} or requested in {"auto", "null"}


@cache
def _measured(path: Path) -> frozenset[float]:
    """Return the numbers of a measurement, and those of its names and notes."""
    return frozenset(_numbers(json.loads(path.read_text(encoding="utf-8"))))


def _numbers(found: object) -> Iterator[float]:
    match found:
        case bool():
            return
        case int() | float():
            yield float(found)
        case str():
            yield from (float(number.replace(",", "")) for number in _NUMBER.findall(found))
        case dict():
            for name, value in found.items():
                yield from _numbers(name)
                yield from _numbers(value)
        case list():
            for value in found:
                yield from _numbers(value)
        case _:
            return


def _place_problem(place: str, root: Path) -> Iterator[str]:
    file, _, anchor = place.partition("#")
    path = root / file
    if not path.exists():
        yield f"there is no {file}"
    elif anchor and anchor not in anchors(path):
        yield f"{file} has no heading #{anchor}"


def problems_of_test(test: str, root: Path = ROOT) -> Iterator[str]:
    """Yield the reasons why a test is not there."""
    file, separator, name = test.partition("::")
    path = root / file
    if not separator or not name.startswith("test"):
        yield f"{test!r} is not FILE::test_name"
    elif not path.is_file():
        yield f"there is no file {file}"
    elif name.partition("[")[0] not in _functions(path):
        yield f"{file} has no {name}"


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    )


def reference(folder: Path = LEDGERS) -> str:
    """Return a summary, and a table for each project."""
    ledgers = {name: read(path) for name, path in ledger_files(folder).items()}
    return "\n".join([_summary(ledgers), *(_table(ledger) for ledger in ledgers.values())])


def _summary(ledgers: Mapping[str, Ledger]) -> str:
    lines = [f"- **{answer}**: {meaning}" for answer, meaning in MEANINGS.items()]
    lines += ["", "| project | built | measured | answered | statements |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for ledger in ledgers.values():
        counts: Counter[str] = Counter(item.answer for item in ledger.items)
        total.update(counts)
        lines.append(_counts_row(f"[{ledger.project}](#{ledger.project.lower()})", counts))
    lines.append(_counts_row("all", total))
    return "\n".join([*lines, ""])


def _counts_row(name: str, counts: Mapping[str, int]) -> str:
    figures = " | ".join(str(counts.get(answer, 0)) for answer in MEANINGS)
    return f"| {name} | {figures} | {sum(counts.values())} |"


def _table(ledger: Ledger) -> str:
    lines = [f"## {ledger.project}", "", "| id | statement | answer | where | test or figure |"]
    lines.append("|---|---|---|---|---|")
    for item in sorted(ledger.items, key=lambda each: _number(each.id)):
        where = "<br>".join(map(_link, item.where)) or "-"
        proof = "<br>".join([*(f"`{test}`" for test in item.test), *filter(None, [item.figure])])
        told = f"{item.answer}: {item.note}" if item.note else item.answer
        cells = (item.id, item.item, told, where, proof or "-")
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])


def _link(place: str) -> str:
    """Return a place as a link if it is a page, else as a path from the root of the repository."""
    if place.startswith("docs/") and ".md" in place:
        return f"[{place.removeprefix('docs/')}](../{place})"
    return f"`{place}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
