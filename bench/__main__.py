"""Benchmarks: ratios measured side by side, with what was aimed at and whether it was reached.

Everything is measured on a daemon, a state directory and queues of its own, which are
gone afterwards.  docs/benchmarks.md says what each line means.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.cases import (
    burst,
    decide,
    dispatch,
    first_line,
    latency,
    listing,
    loader_memory,
    overhead,
    placement,
    post,
    resume,
    stall,
    submit,
)
from bench.cases import idle_daemon as daemon
from bench.support.machine import Machine, this_machine
from bench.support.result import CannotMeasure, Line, NotMeasured, Result, as_json
from bench.support.scratch import QUICK, Effort, Room, opened
from bench.support.table import render
from runner.base.errors import RunnerError

BENCHES: Final[dict[str, Callable[[Room], Iterator[Line]]]] = {
    submit.BENCH: submit.measure,
    post.BENCH: post.measure,
    first_line.BENCH: first_line.measure,
    resume.BENCH: resume.measure,
    daemon.BENCH: daemon.measure,
    listing.BENCH: listing.measure,
    decide.BENCH: decide.measure,
    placement.BENCH: placement.measure,
    dispatch.BENCH: dispatch.measure,
    burst.BENCH: burst.measure,
    latency.BENCH: latency.measure,
    overhead.BENCH: overhead.measure,
    stall.BENCH: stall.measure,
    loader_memory.BENCH: loader_memory.measure,
}
RESULTS: Final = Path(__file__).with_name("results")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for, print it, and keep it if it was all there is."""
    asked = _parser().parse_args(argv)
    names = asked.names or list(BENCHES)
    machine = this_machine()
    print(machine.text(), flush=True)
    effort = replace(QUICK if asked.quick else Effort(), whole=asked.whole)
    with opened(effort) as room:
        lines = [line for name in names for line in measured(name, room)]
    text = f"{machine.text()}\n\n{render(lines)}"
    print(f"\n{render(lines)}", end="")
    keep = asked.results or (None if asked.quick or asked.names else RESULTS)
    if keep is not None:
        name = "-".join([machine.slug, *asked.names])
        write(keep, name, machine, lines, text)
        _draw(keep / f"{name}.png", machine, lines)
    return 0


def measured(name: str, room: Room) -> list[Line]:
    """Return the lines of one bench; what goes wrong becomes a line that says so."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    lines: list[Line] = []
    try:
        lines.extend(BENCHES[name](room))
    except (CannotMeasure, RunnerError) as problem:
        lines.append(NotMeasured(name, name, " ".join(str(problem).split())))
    print(f"measured {name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return lines


def write(directory: Path, name: str, machine: Machine, lines: Sequence[Line], text: str) -> None:
    """Keep the numbers and the table of one sitting, named after the kind of machine."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = {"machine": machine.as_json(), "lines": [as_json(line) for line in lines]}
    (directory / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    (directory / f"{name}.txt").write_text(text)


def _draw(path: Path, machine: Machine, lines: Sequence[Line]) -> None:
    """Keep memory by epoch as a picture, if it was measured."""
    memory = [line for line in lines if line.bench == loader_memory.BENCH]
    if any(isinstance(line, Result) for line in memory):
        print(loader_memory.draw(memory, f"{machine.cpu}, {machine.cores} cores", path), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument(
        "--quick", action="store_true", help="see that everything works; numbers mean nothing"
    )
    parser.add_argument(
        "--whole", action="store_true", help="burst: 300 jobs also in queues that need minutes for them"
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="keep JSON and table here")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and tidy up on the way
    sys.exit(main())
