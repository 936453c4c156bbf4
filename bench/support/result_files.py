"""Result files: one folder per kind of machine, one JSON file per measurement.

The files contain numbers, not tables: ``python -m bench --show`` renders a table from a file. Files of
``runner bench`` can lie in the same folders.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.support.machine import Machine
from bench.support.result import Aim, Line, NotMeasured, Result, Series, as_json
from bench.support.table import render
from runner.cli.bench import comparison
from runner.cli.bench.machine import one_line

RESULTS: Final = Path(__file__).parents[1] / "results"
EVERYTHING: Final = "all"
"""The file name of a measurement of all cases."""


def write(folder: Path, names: Sequence[str], machine: Machine, lines: Sequence[Line]) -> Path:
    """Write the lines of one measurement, and return the file."""
    directory = folder / machine.slug
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{'-'.join(names) or EVERYTHING}.json"
    kept = {"machine": machine.as_json(), "lines": [as_json(line) for line in lines]}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def find(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files of all machines that hold one of these cases; all files if no case is named."""
    for path in sorted(folder.glob("*/*.json")):
        if not names or any(name in path.stem for name in names):
            yield path


def show(path: Path) -> str:
    """Return the content of a file as a table, below a line about the machine."""
    kept: Mapping[str, Any] = json.loads(path.read_text())
    if "lines" not in kept:
        return _show_profiles(kept)
    machine = Machine(**kept["machine"])
    return f"{machine.text()}\n\n{render([read_line(line) for line in kept['lines']])}"


def read_line(kept: Mapping[str, Any]) -> Line:
    """Return the line that ``as_json`` has converted to ``kept``."""
    if "why" in kept:
        return NotMeasured(kept["bench"], kept["label"], kept["why"])
    ours, theirs, aim = kept["ours"], kept["theirs"], kept["aim"]
    return Result(
        kept["bench"],
        _read_series(ours),
        None if theirs is None else _read_series(theirs),
        None if aim is None else Aim(**aim),
        kept["note"],
        kept["paired"],
        kept.get("of_means", False),
    )


def _read_series(kept: Mapping[str, Any]) -> Series:
    return Series(kept["label"], kept["unit"], tuple(kept["values"]))


def _show_profiles(kept: Mapping[str, Any]) -> str:
    """Return the table of ``runner bench``."""
    rows = [comparison.ArmRow(**row) for row in kept["arms"]]
    head = f"{kept['name']}, {kept['rounds']} rounds, on {one_line(kept['machine'])}"
    return f"{head}\n{comparison.table(rows)}\n"
