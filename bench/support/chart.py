"""Memory by epoch as a picture; the only result that says more as a picture than as a table."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

MISSING: Final = "no chart: matplotlib is not installed; pip install 'gpu-job-runner[chart]'"


def save(series: Mapping[str, Sequence[float]], title: str, path: Path) -> str:
    """Draw one line for each series and return what became of it."""
    try:
        figure = import_module("matplotlib.figure").Figure
    except ImportError:
        return MISSING
    paper = figure(figsize=(9, 5), layout="constrained")
    draw(paper, series, title)
    paper.savefig(path)
    return f"wrote {path.name}"


def draw(paper: Any, series: Mapping[str, Sequence[float]], title: str) -> None:  # noqa: ANN401
    """Draw from nought up: what looks flat then is flat."""
    axes = paper.add_subplot()
    for label, values in series.items():
        axes.plot(range(1, len(values) + 1), values, marker=".", label=label)
    axes.set(title=title, xlabel="epoch", ylabel="MiB", ylim=(0, None))
    axes.legend(loc="center right")
