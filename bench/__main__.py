"""Benchmarks: ratios measured side by side, each with its aim and whether it was reached.

Each measurement has its own daemon, state directory and queues, and removes them at its end.
bench/README.md explains each line.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.cases import (
    burst,
    dashboard,
    data_parallel,
    decide,
    decisions,
    dispatch,
    estimates,
    first_line,
    graphs,
    growth,
    hostile,
    idle_daemon,
    latency,
    loader_memory,
    long_queue,
    overhead,
    packages,
    placement,
    post,
    resume,
    run_true,
    sessions,
    sharing,
    slurm_jobs,
    slurm_ranks,
    snapshot,
    soak,
    stall,
    start,
    stream_scale,
    submit,
    sweep,
)
from bench.support import result_files
from bench.support.machine import Machine, this_machine
from bench.support.result import CannotMeasure, Line, NotMeasured, Result
from bench.support.scratch import QUICK, Effort, Scratch, open_scratch
from bench.support.table import render
from runner.base.errors import RunnerError

BENCHES: Final[dict[str, Callable[[Scratch], Iterator[Line]]]] = {
    submit.BENCH: submit.measure,
    snapshot.BENCH: snapshot.measure,
    post.BENCH: post.measure,
    first_line.BENCH: first_line.measure,
    run_true.BENCH: run_true.measure,
    packages.BENCH: packages.measure,
    resume.BENCH: resume.measure,
    start.BENCH: start.measure,
    sessions.BENCH: sessions.measure,
    idle_daemon.BENCH: idle_daemon.measure,
    growth.BENCH: growth.measure,
    long_queue.BENCH: long_queue.measure,
    hostile.BENCH: hostile.measure,
    dashboard.BENCH: dashboard.measure,
    decide.BENCH: decide.measure,
    decisions.BENCH: decisions.measure,
    placement.BENCH: placement.measure,
    dispatch.BENCH: dispatch.measure,
    sharing.BENCH: sharing.measure,
    estimates.BENCH: estimates.measure,
    burst.BENCH: burst.measure,
    slurm_jobs.BENCH: slurm_jobs.measure,
    slurm_ranks.BENCH: slurm_ranks.measure,
    latency.BENCH: latency.measure,
    overhead.BENCH: overhead.measure,
    stall.BENCH: stall.measure,
    data_parallel.BENCH: data_parallel.measure,
    loader_memory.BENCH: loader_memory.measure,
    stream_scale.BENCH: stream_scale.measure,
    graphs.BENCH: graphs.measure,
    sweep.BENCH: sweep.measure,
    soak.BENCH: soak.measure,
}

ALONE: Final = frozenset({soak.BENCH, sweep.BENCH})
"""Those that take long, and are measured only where they are named."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named cases, print the results, and save them if all were measured; or show saved results."""
    asked = _parser().parse_args(argv)
    if asked.show:
        for path in result_files.find(asked.results or result_files.RESULTS, asked.names):
            print(f"{path}\n{result_files.show(path)}")
        return 0
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody installs a daemon that compiles at each start
    names = asked.names or [name for name in BENCHES if name not in ALONE]
    machine = this_machine()
    print(machine.text(), flush=True)
    effort = replace(QUICK if asked.quick else Effort(), whole=asked.whole)
    if asked.soak_s is not None:
        effort = replace(effort, soak_s=asked.soak_s)
    with open_scratch(effort) as scratch:
        lines = [line for name in names for line in measure_case(name, scratch)]
    print(f"\n{render(lines)}", end="")
    folder = asked.results or (None if asked.quick or asked.names else result_files.RESULTS)
    if folder is not None:
        path = result_files.write(folder, asked.names, machine, lines)
        _draw(path.with_suffix(".png"), machine, lines)
    return 0


def measure_case(name: str, scratch: Scratch) -> list[Line]:
    """Return the lines of one case; an error becomes a line with its reason."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    lines: list[Line] = []
    try:
        lines.extend(BENCHES[name](scratch))
    except (CannotMeasure, RunnerError) as problem:
        lines.append(NotMeasured(name, name, " ".join(str(problem).split())))
    print(f"measured {name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return lines


def _seconds(text: str) -> float:
    """Return the seconds of a time such as 90s, 20m and 2h."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    if unit is None or not text[:-1].isdecimal() or not int(text[:-1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; for example 20m or 2h")
    return int(text[:-1]) * float(unit)


def _draw(path: Path, machine: Machine, lines: Sequence[Line]) -> None:
    """Save what is drawn of the measurements: memory by epoch, and slowdowns of a day in several queues."""
    where = f"{machine.cpu}, {machine.cores} cores"
    for case, to in ((loader_memory, path), (sharing, path.with_name(f"{sharing.BENCH}.png"))):
        found = [line for line in lines if line.bench == case.BENCH]
        if any(isinstance(line, Result) for line in found):
            print(case.draw(found, where, to), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument(
        "--quick", action="store_true", help="see that everything works; numbers mean nothing"
    )
    parser.add_argument(
        "--whole", action="store_true", help="burst: 300 jobs also in queues that need minutes for them"
    )
    parser.add_argument(
        "--for", dest="soak_s", type=_seconds, metavar="TIME", help="soak: for so long, as 20m; 2h by default"
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="keep the numbers below this directory")
    parser.add_argument(
        "--show", action="store_true", help="print the tables of kept results and measure nothing"
    )
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the clean-up
    sys.exit(main())
