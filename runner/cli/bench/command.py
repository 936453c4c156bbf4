"""``runner bench``: run the same job under several profiles in turns, and compare the speed.

The jobs are ordinary jobs. They are submitted one after the other, because concurrent jobs would disturb
each other's measurements.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from runner.base.errors import Unavailable, UsageError
from runner.base.textfile import open_source
from runner.cli.console import complain, say
from runner.cli.wait import await_end
from runner.client.client import Client, find_or_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runner.cli.bench.comparison import ArmRow, Measurement
    from runner.cli.bench.variants import BenchmarkJob, ProfileVariant

MAX_REPORT_BYTES: Final = 16 * 1024 * 1024  # of one report; a program writes it, so it is untrusted
CHART_MISSING: Final = "no chart: matplotlib is not installed; pip install 'gpu-job-runner[chart]'"


@click.command()
@click.argument("what", metavar="WORKLOAD|FILE")
@click.option(
    "--profiles",
    default="baseline,auto",
    show_default=True,
    help="Profiles, separated by commas.",
)
@click.option(
    "--ablate",
    is_flag=True,
    help="With two profiles: also measure the second with one switch at a time set to the first's value.",
)
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="Jobs of each profile."
)
@click.option("--steps", type=click.IntRange(2), help="Steps of each job, instead of those in the file.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("bench-results"),
    show_default=True,
    help="Directory for NAME.json, NAME.txt and, with matplotlib, NAME.png.",
)
def bench(  # noqa: PLR0913  one per option
    what: str, *, profiles: str, ablate: bool, rounds: int, steps: int | None, output: Path
) -> None:
    """Compare the speed of a job under several profiles.

    WORKLOAD is a built-in workload with small settings; the profile of a FILE is ignored. Jobs run one
    after the other, in rounds of one for each profile. Ratios are relative to the first profile.
    """
    from runner.cli.bench import comparison, machine, variants

    base = variants.read_base_job(what, steps)
    chosen, skipped = _chosen(base, profiles.split(","), ablate=ablate)
    _make(output)
    host = machine.describe_machine()
    about = {"name": base.name, "workload": base.written["workload"], "rounds": rounds, "machine": host}
    for switch, why in skipped.items():
        complain(f"left out: {switch}: {why}")
    rows = comparison.compare(_measure(find_or_start(complain), base, chosen, rounds))
    text = f"{base.name}, {rounds} rounds, on {machine.one_line(host)}\n{comparison.table(rows)}"
    say(text)
    _keep(output, base.name, text, comparison.as_json(rows, skipped, about))
    _chart(rows, output / f"{base.name}.png")


def _chosen(
    base: BenchmarkJob, names: list[str], *, ablate: bool
) -> tuple[list[ProfileVariant], dict[str, str]]:

    from runner.cli.bench import variants

    arms = variants.profile_variants(names, base.accelerator)
    if not ablate:
        return arms, {}
    if len(names) != 2:
        raise UsageError(f"--ablate goes with two profiles, not {len(names)}: --profiles SLOW,FAST")
    return variants.ablation_variants(base, *names)


def _measure(
    client: Client, base: BenchmarkJob, arms: Sequence[ProfileVariant], rounds: int
) -> dict[str, list[Measurement]]:
    """Return the measurements of each variant, one for each round."""
    found: dict[str, list[Measurement]] = {arm.name: [] for arm in arms}
    for number in range(1, rounds + 1):
        for arm in arms:
            complain(f"round {number}/{rounds}: {arm.name}")
            found[arm.name].append(_one(client, base, arm))
    return found


def _one(client: Client, base: BenchmarkJob, arm: ProfileVariant) -> Measurement:
    """Return the measurement of one job.

    Raises:
        Unavailable: the job did not succeed, or its reports cannot be read.
    """
    from runner.cli.bench import comparison, variants

    answer = client.submit(base.path, variants.render_job_file(base, arm), variants.job_name(base, arm))
    job_id = answer["job"]["id"]
    try:
        _, job = await_end(client, job_id, None)
    except KeyboardInterrupt:
        client.act(job_id, "cancel", {})  # an interrupted measurement needs no job
        raise
    if job["outcome"] != "succeeded":
        end = job["outcome"] or job["state"]
        raise Unavailable(f"{arm.name}: job {job_id} {end}: {job['why']}; see runner logs {job_id}")
    last = max((attempt["number"] for attempt in job["attempts"]), default=1)
    directory = Path(job["run_dir"]) / "attempts" / str(last)
    status = _objects(directory / "status.json")
    return comparison.make_measurement(
        job_id,
        job["result"] or {},
        _objects(directory / "metrics.jsonl"),
        next(iter(_objects(directory / "effective.json")), {}),
        next((each.get("memory_bytes") for each in status), None),
    )


def _objects(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in a report: one per line, or a single one; an incomplete line is skipped.

    Raises:
        Unavailable: the report cannot be read.
    """
    try:
        with open_source(path) as file:  # the job may have replaced the file by a pipe
            content = file.read(MAX_REPORT_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise Unavailable(
            f"{path}: {error.strerror}; bench reads the reports on the daemon's machine"
        ) from error
    pieces = [content] if _parsed(content) else content.splitlines()
    return [found for piece in pieces if (found := _parsed(piece))]


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _make(output: Path) -> None:
    """Create the directory for the results; called before measuring, so that an error shows early."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{output}: cannot be made: {error.strerror}; choose another --output") from error


def _keep(output: Path, name: str, text: str, everything: dict[str, Any]) -> None:
    try:
        (output / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
        (output / f"{name}.json").write_text(f"{json.dumps(everything, indent=1)}\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}; choose another --output") from error
    complain(f"wrote {output / name}.json and {output / name}.txt")


def _chart(rows: Sequence[ArmRow], path: Path) -> None:
    """Draw the ratios if the plotting library is installed."""
    from importlib import import_module

    try:
        figure = import_module("matplotlib.figure").Figure
    except ImportError:
        complain(CHART_MISSING)
        return
    draw(figure(figsize=(9, 1 + 0.4 * len(rows)), layout="constrained"), rows, path)
    complain(f"wrote {path}")


def draw(figure: Any, rows: Sequence[ArmRow], path: Path) -> None:  # noqa: ANN401  matplotlib may not be there
    """Draw one bar per arm and figure: the speed relative to the first arm."""
    for place, title, name in ((1, "items/s", "items_ratio"), (2, "evaluation", "eval_ratio")):
        axes = figure.add_subplot(1, 2, place)
        axes.barh([row.name for row in rows], [getattr(row, name) or 0.0 for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel(f"{title}, times {rows[0].name}")
    figure.savefig(path)
