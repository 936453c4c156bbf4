"""``runner tune``: the command, its table and the job file that it writes."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import Unavailable, UsageError
from runner.cli.console import complain, say, say_json
from runner.cli.parameters import as_json, seconds
from runner.cli.placing import placed
from runner.client.autostart import remote_host
from runner.client.client import find_or_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runner.cli.bench.variants import BenchmarkJob
    from runner.cli.tune.attempts import Meter
    from runner.cli.tune.search import Search, ShortAttempt

WINDOW: Final = 1 / 100
"""The share of the time for which one attempt trains."""

WINDOW_S: Final = (2.0, 30.0)
LONGER: Final = 4.0
"""Most time of another attempt as a multiple of the first one's: a compiled one starts later."""

LONGEST_S: Final = 60.0
"""Most time of an attempt in any case."""


@click.command()
@click.argument("what", metavar="FILE|WORKLOAD")
@click.option(
    "--for", "budget", callback=seconds, default="10m", show_default=True, metavar="DURATION",
    help="End within this time.",
)  # fmt: skip
@click.option("--numerics", is_flag=True, help="Also try what computes with other numbers: bf16, TF32.")
@click.option(
    "--variable", "variables", multiple=True, metavar="NAME=V1,V2",
    help="Also try these values of an environment variable.",
)  # fmt: skip
@click.option(
    "--argument", "arguments", multiple=True, metavar="--OPTION=V1,V2",
    help="Also try these values of an argument of the program.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="The job file to write.  [NAME.tuned.yaml beside FILE]",
)  # fmt: skip
@as_json
def tune(  # noqa: PLR0913  one per option
    what: str,
    *,
    budget: float,
    numerics: bool,
    variables: tuple[str, ...],
    arguments: tuple[str, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Find the settings with which a job is faster, and write them down with their measurements.

    One setting after the other is measured in short attempts, in turns with the job as it is; what is
    faster for certain is kept. The program must report its steps. The FILE itself never changes.
    """
    from runner.cli.bench.machine import describe_machine, one_line
    from runner.cli.bench.variants import read_base_job
    from runner.cli.tune.attempts import Meter
    from runner.cli.tune.candidates import asked, offered
    from runner.cli.tune.search import Search
    from runner.cli.tune.tuned_file import job_text

    base, until_s = read_base_job(what, None), monotonic() + budget
    wanted = asked(base, variables, arguments)
    target = _target(base, output)
    host = "on another machine" if remote_host(os.environ) else one_line(describe_machine())
    window_s = min(max(budget * WINDOW, WINDOW_S[0]), WINDOW_S[1])
    client, text = find_or_start(complain), base.source.encode()
    if text:  # what is wrong in the file is told with its place there, which attempts do not have
        client.submit(placed(base.path, text), text, None, dry_run=True)
    meter = Meter(client, base, window_s, until_s, budget / 2)
    search = Search(meter.measure, meter.left_s)
    first = meter.measure(())
    if first.rate is None:
        raise Unavailable(f"{base.name}: {first.why}; nothing was tried")
    found = offered(base, meter.applied, numerics=numerics)
    if tried := [*wanted, *found.candidates]:
        attempt_s = _warm(meter, search, first, budget)
        meter.longest_s = search.longest_s = max(LONGER * attempt_s, LONGEST_S)
        search.run(tried, attempt_s)
    if as_json:
        say_json(_results(search, found.left_out, host))
    else:
        for line in told(search, found.left_out):
            say(line)
    if search.kept:
        _write(target, job_text(base, search, host))


def _target(base: BenchmarkJob, output: Path | None) -> Path:
    """Return the path of the new job file; checked before anything is measured.

    Raises:
        UsageError: it would replace the file, or lie where the paths in it lead elsewhere.
    """
    here = Path(base.path).absolute()
    target = output or here.with_name(f"{here.stem}.tuned.yaml")
    if target.absolute().parent != here.parent or target.absolute() == here:
        raise UsageError(
            f"-o {target}: name another file in the directory of {here.name}, where its paths begin"
        )
    return target


def _warm(meter: Meter, search: Search, first: ShortAttempt, budget: float) -> float:
    """Return the seconds of an attempt: of the first, or of a second if the first was too slow.

    Raises:
        Unavailable: it has shown no rate.
        UsageError: there is no time for a single setting.
    """
    if meter.left_s() < search.least_s(first.took_s):
        first = meter.measure(())  # a warm one starts sooner
    if first.rate is None:
        raise Unavailable(f"{meter.base.name}: {first.why}; nothing was tried")
    if meter.left_s() < (least_s := search.least_s(first.took_s)):
        raise UsageError(
            f"--for {budget:.0f}s: one attempt takes {first.took_s:.0f} s, and one setting needs "
            f"{least_s:.0f} s more: --for {(budget + least_s) // 60 + 1:.0f}m"
        )
    return first.took_s


def told(search: Search, left_out: Mapping[str, str]) -> Iterator[str]:
    """Yield the table of what was tried, what was left out, and the result."""
    from runner.cli.table import UNLIMITED, format_table, make_table

    rows = [
        (row.candidate.title, str(row.ratio or "-"), "kept" if row.kept else "-", row.why)
        for row in search.rows
    ]
    if rows:
        yield from format_table(make_table(("SETTING", "TIMES AS FAST", "", "WHY"), rows), UNLIMITED)
    for why in dict.fromkeys(left_out.values()):
        yield f"left out: {', '.join(name for name, each in left_out.items() if each == why)}: {why}"
    if undecided := list(dict.fromkeys(row.candidate.name for row in search.rows if row.undecided)):
        yield f"not decided in this time: {', '.join(undecided)}; a longer --for goes on"
    if search.kept:
        yield f"all that was kept, measured again: {search.final} times as fast as before"
    elif search.rows:
        yield "nothing is kept: no setting that was decided is faster"
    else:
        yield "nothing is kept: there is no setting to try; --variable and --argument name others"


def _results(search: Search, left_out: Mapping[str, str], host: str) -> dict[str, Any]:
    """Return all results for programs."""
    return {
        "machine": host,
        "rows": [
            {
                key: value
                for key, value in (row.candidate._asdict() | asdict(row)).items()
                if key != "candidate"
            }
            for row in search.rows
        ],
        "left_out": dict(left_out),
        "final": asdict(search.final) if search.final else None,
        "kept": [each._asdict() for each in search.kept],
    }


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}; choose another --output") from error
    complain(f"wrote {target}; runner submit {target}, or runner apply {target} for a job that runs")
