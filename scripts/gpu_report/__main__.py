"""The command: runs the parts one after the other, and writes the report after each."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runner.base.units import parse_duration
from scripts.gpu_report import machine
from scripts.gpu_report.context import environment, source_root
from scripts.gpu_report.report import FILE, REHEARSED, Finding, Part, not_run, read, write
from scripts.gpu_report.run_part import LIMITS_S, ORDER, module

LEAST_S: Final = 15.0
"""Minimum time left to start a part."""

SLOWER: Final = 4
"""So many times as long a part may take in a rehearsal: a busy CPU compiles for minutes."""

GRACE_S: Final = 8.0
"""Time between the deadline of a part and its SIGKILL."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested parts; return 0 if no check failed."""
    asked = _parser().parse_args(argv)
    results: Path = asked.results or _results(rehearsal=asked.rehearse)
    if asked.render:
        write(results, read(results, ORDER))
        return 0
    until = time.monotonic() + parse_duration(asked.budget).total_seconds()
    about = machine.described(rehearsal=asked.rehearse)
    results = results if asked.results else results / _slug(about)
    mark = f" ({REHEARSED})" if asked.rehearse or asked.tiny else ""
    print(f"{about.get('device')}: {', '.join(asked.only or ORDER)}; results in {results}", flush=True)
    for name in asked.only or ORDER:
        part = run_part(name, about, until - time.monotonic(), asked)
        known = {each.name: each for each in read(results, ORDER)} | {name: part}
        write(results, [known[each] for each in ORDER if each in known])
    wrong = [each for part in read(results, ORDER) for each in part.findings if each.status == "failed"]
    print(f"{len(wrong)} check(s) failed{mark}; {results / FILE}", flush=True)
    return 1 if wrong else 0


def run_part(name: str, about: Mapping[str, Any], left_s: float, asked: argparse.Namespace) -> Part:
    """Run one part within its time limit."""
    limit_s = min(LIMITS_S[name] * (SLOWER if asked.rehearse else 1), left_s)
    began, started = time.strftime("%Y-%m-%d %H:%M", time.gmtime()), time.monotonic()
    mark = f" ({REHEARSED})" if asked.rehearse or asked.tiny else ""
    print(f"{name}{mark}: at most {max(limit_s, 0):.0f} s", flush=True)
    if not asked.rehearse and about.get("device") == machine.NO_DEVICE:
        findings: tuple[Finding, ...] = (not_run(name, machine.NO_DEVICE),)
    elif limit_s < LEAST_S:
        findings = (not_run(name, f"{max(left_s, 0):.0f} s of the budget left"),)
    else:
        findings = _findings(name, limit_s, _options(asked))
    took_s = time.monotonic() - started
    print(f"{name}{mark}: {took_s:.0f} s", flush=True)
    return Part(
        name,
        module(name).TITLE,
        about,
        asked.rehearse or asked.tiny,
        f"{began} UTC",
        round(took_s, 1),
        findings,
    )


def _options(asked: argparse.Namespace) -> list[str]:
    return [*(["--rehearse"] if asked.rehearse else []), *(["--tiny"] if asked.tiny else [])]


def _findings(name: str, limit_s: float, options: Sequence[str]) -> tuple[Finding, ...]:
    """Run one part in its own process, and return its findings."""
    directory = Path(tempfile.mkdtemp(prefix=f"gpu-report-{name}-"))
    directory.chmod(0o755)
    kept = directory / "findings.jsonl"
    argv = [sys.executable, "-m", "scripts.gpu_report.run_part", name, "--directory", str(directory / "work")]
    argv += ["--findings", str(kept), "--limit", f"{limit_s - GRACE_S:.1f}", *options]
    (directory / "work").mkdir(mode=0o755)
    kept.touch()
    try:
        end = _run_to_end(argv, limit_s)
        findings = [Finding(**json.loads(line)) for line in kept.read_text().splitlines()]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return (*findings, *([not_run(f"rest of {name}", end)] if end else []))


def _run_to_end(argv: Sequence[str], limit_s: float) -> str:
    """Run a process group to its end; return why it did not finish, or an empty string."""
    with subprocess.Popen(argv, cwd=source_root(), env=environment(), start_new_session=True) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"killed after {limit_s:.0f} s"
        finally:
            _end_group(process.pid)
    return "" if code in {0, 1} else f"the part's process ended with {code}"


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _results(*, rehearsal: bool) -> Path:
    """Return the default directory of results."""
    if out := os.environ.get("OUT"):
        return Path(out)
    return source_root() / (".make/gpu-report" if rehearsal else "bench/results/gpu")


def _slug(about: Mapping[str, Any]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", str(about.get("device")).lower()).strip("-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-report", description="Measure on a GPU what the documentation states about GPUs."
    )
    parser.add_argument("--only", action="append", choices=ORDER, help="run this part; may be repeated")
    parser.add_argument(
        "--budget", default="1h", help="time for all parts, such as 9m (default: %(default)s)"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="run on the CPU with tiny sizes: tests the command, measures nothing",
    )
    parser.add_argument("--tiny", action="store_true", help="run on the device with the sizes of a rehearsal")
    parser.add_argument("--results", type=Path, help="directory (default: $OUT, or bench/results/gpu)")
    parser.add_argument(
        "--render", action="store_true", help="only render the tables of report.md again from its figures"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
