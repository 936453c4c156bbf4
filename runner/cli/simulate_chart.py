"""The picture of ``runner simulate``: how long jobs waited in each order, and how full the machine was."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from runner.base.errors import UsageError
from runner.core.scheduler.simulator import SimulatedJob
from runner.core.scheduler.simulator_report import occupation

MISSING: Final = (
    "a picture needs matplotlib, which is not installed; pip install 'gpu-job-runner[chart]', "
    "or leave out --svg and --png"
)

LEAST_WAIT_S: Final = 1.0
"""Shorter waits are drawn as so long: the axis is logarithmic."""

HOUR_S, DAY_S = 3600.0, 86400.0
TICKS: Final = {1.0: "1 s", 60.0: "1 min", HOUR_S: "1 h", DAY_S: "1 d", 7 * DAY_S: "1 week"}


def new_figure() -> Any:  # noqa: ANN401  matplotlib may not be there
    """Return an empty figure.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        return import_module("matplotlib.figure").Figure(figsize=(10, 4.5), layout="constrained")
    except ImportError as error:
        raise UsageError(MISSING) from error


def save(figure: Any, path: Path, kind: str) -> None:  # noqa: ANN401  as above
    """Write a figure as ``svg`` or ``png``.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        figure.savefig(path, format=kind)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; choose another place") from error


def draw(figure: Any, played: Mapping[str, Sequence[SimulatedJob]], devices: int) -> None:  # noqa: ANN401
    """Draw the distribution of waiting, and the occupation of the machine, with a line for each order."""
    waits, busy = figure.subplots(1, 2)
    for name, jobs in played.items():
        waits.plot(*_distribution(jobs), label=name, drawstyle="steps-post")
        times_s, held = occupation(jobs)
        busy.plot([at_s / DAY_S for at_s in times_s], [each / devices for each in held], label=name, lw=0.8)
    waits.set(xscale="log", ylim=(0, 1), title="wait to the first start", ylabel="part of the jobs")
    waits.set_xticks(list(TICKS), list(TICKS.values()))
    waits.minorticks_off()
    waits.legend(loc="lower right")
    busy.set(ylim=(0, 1.02), title="devices held", xlabel="days", ylabel=f"part of {devices}")


def _distribution(jobs: Sequence[SimulatedJob]) -> tuple[list[float], list[float]]:
    """Return the waits in ascending order, and the part of the jobs that waited no longer."""
    ordered = sorted(max(each.waited_s, LEAST_WAIT_S) for each in jobs)
    return ordered, [(number + 1) / len(ordered) for number in range(len(ordered))]
