"""Charts of results: memory by epoch, and slowdowns of a day in several queues."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeAlias

MISSING: Final = "no chart: matplotlib is not installed; pip install 'gpu-job-runner[chart]'"

Draw: TypeAlias = Callable[[Any], None]
"""Draws on a figure of matplotlib."""


def save(draw: Draw, path: Path, size: tuple[float, float] = (9, 5)) -> str:
    """Draw a figure and save it, and return a message about the outcome."""
    try:
        figure = import_module("matplotlib.figure").Figure
    except ImportError:
        return MISSING
    paper = figure(figsize=size, layout="constrained")
    draw(paper)
    paper.savefig(path)
    return f"wrote {path.name}"


def epochs(series: Mapping[str, Sequence[float]], title: str) -> Draw:
    """Return what draws series by epoch, with an axis that starts at zero: no slope is exaggerated."""

    def draw(paper: Any) -> None:
        axes = paper.add_subplot()
        for label, values in series.items():
            axes.plot(range(1, len(values) + 1), values, marker=".", label=label)
        axes.set(title=title, xlabel="epoch", ylabel="MiB", ylim=(0, None))
        axes.legend(loc="center right")

    return draw


def means(days: Mapping[str, Mapping[str, Sequence[float]]], label: str, title: str) -> Draw:
    """Return what draws the means of each day's queues as bars, with the value of each."""

    def draw(paper: Any) -> None:
        paper.suptitle(title, fontsize=9)
        heights = [len(queues) for queues in days.values()]
        axes_of = paper.subplots(len(days), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, (day, queues) in zip(axes_of, days.items(), strict=True):
            bars = axes.barh(list(queues), [fmean(values) for values in queues.values()], color="tab:blue")
            bars[0].set_color("tab:orange")
            axes.bar_label(bars, fmt="%.1f", padding=3)
            axes.invert_yaxis()
            axes.margins(x=0.1)
            axes.set_title(day, fontsize=10)
        axes_of[-1].set_xlabel(label)

    return draw
