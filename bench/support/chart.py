"""A chart of memory by epoch, the only result shown as a picture."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

MISSING: Final = "no chart: matplotlib is not installed; pip install 'gpu-job-runner[chart]'"


def save(series: Mapping[str, Sequence[float]], title: str, path: Path) -> str:
    """Draw one line per series, and return a message about the outcome."""
    try:
        figure = import_module("matplotlib.figure").Figure
    except ImportError:
        return MISSING
    paper = figure(figsize=(9, 5), layout="constrained")
    draw(paper, series, title)
    paper.savefig(path)
    return f"wrote {path.name}"


def draw(paper: Any, series: Mapping[str, Sequence[float]], title: str) -> None:  # noqa: ANN401
    """Draw the series with an axis that starts at zero, so that slopes are not exaggerated."""
    axes = paper.add_subplot()
    for label, values in series.items():
        axes.plot(range(1, len(values) + 1), values, marker=".", label=label)
    axes.set(title=title, xlabel="epoch", ylabel="MiB", ylim=(0, None))
    axes.legend(loc="center right")
