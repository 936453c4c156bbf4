"""The picture of a day in several queues."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.cases import sharing
from bench.support import chart
from bench.support.result import Line, NotMeasured, Result, Series


def test_each_day_has_a_bar_for_each_queue_with_the_mean_of_its_slowdowns(tmp_path: Path) -> None:
    ours = Series("slowdown of 2 trainings on 1", "x", (1.0, 3.0))
    lines: list[Line] = [
        Result(sharing.BENCH, ours, Series("fair", "x", (9.0, 11.0)), of_means=True),
        Result(sharing.BENCH, ours, Series("Slurm, requeue", "x", (4.0, 6.0)), of_means=True),
        Result(sharing.BENCH, Series("weights that differ", "jobs", (0.0,))),
        NotMeasured(sharing.BENCH, "Slurm, time slices", "not here"),
    ]
    assert sharing.draw(lines, "a machine", tmp_path / "sharing.png") == "wrote sharing.png"
    assert (tmp_path / "sharing.png").read_bytes().startswith(b"\x89PNG")
    paper = Figure()
    chart.means({"a day": {"attained": (1.0, 3.0), "fair": (9.0, 11.0)}}, "slowdown", "a machine")(paper)
    (axes,) = paper.axes
    assert axes.get_title() == "a day"
    assert [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)] == [2.0, 10.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["attained", "fair"]
