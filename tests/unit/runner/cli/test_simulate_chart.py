"""The picture of a simulation: what is drawn, and what is said when it cannot be."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runner.cli import simulate_chart
from runner.cli.main import cli
from runner.core.scheduler.simulator import Arrival, SimulatedJob
from runner.core.scheduler.simulator_report import occupation
from runner.core.scheduler.snapshot import ResourceRequest

MADE = ("--synthetic", "1", "--jobs", "40", "--hosts", "1x8", "--tick", "300", "--order", "fifo")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *MADE, *arguments])


def played(job_id: str, submitted_s: float, *spans: tuple[float, float], count: int = 1) -> SimulatedJob:
    request = ResourceRequest(gpus=count)
    lasted_s = sum(ends_s - begins_s for begins_s, ends_s in spans)
    return SimulatedJob(Arrival(job_id, "ada", request, submitted_s, lasted_s), spans, killed=False)


def test_pictures_are_written_in_both_formats_and_the_numbers_stay(tmp_path: Path) -> None:
    svg, png = tmp_path / "waits.svg", tmp_path / "waits.png"
    drawn = call("--svg", str(svg), "--png", str(png), "--json")
    assert (drawn.exit_code, drawn.stderr) == (0, "")
    assert drawn.stdout == call("--json").stdout
    assert json.loads(drawn.stdout)["jobs"] == 40
    assert "<svg" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_line_for_each_order_shows_waits_and_devices_held() -> None:
    figure = simulate_chart.new_figure()
    jobs = [played("a", 0, (0, 100)), played("b", 0, (50, 100), count=3)]
    simulate_chart.draw(figure, {"fifo": jobs, "attained": jobs}, 4)
    waits, busy = figure.axes
    assert [line.get_label() for line in waits.lines] == ["fifo", "attained"]
    assert [list(each) for each in waits.lines[0].get_data()] == [[1.0, 50.0], [0.5, 1.0]]
    assert max(busy.lines[0].get_ydata()) == pytest.approx(1.0)


def test_occupation_is_the_mean_of_the_devices_held_in_each_part_of_the_time() -> None:
    jobs = [played("a", 10, (10, 60)), played("b", 10, (35, 110), count=2)]
    assert occupation(jobs, 4) == ([0.0, 25.0, 50.0, 75.0], [1.0, 3.0, 2.0, 2.0])
    assert occupation([]) == ([], [])


def test_without_matplotlib_nothing_is_simulated_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = call("--svg", str(tmp_path / "x.svg"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a picture needs matplotlib, which is not installed; pip install 'gpu-job-runner[chart]'" in (
        result.stderr
    )


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    result = call("--png", str(tmp_path / "no" / "x.png"))
    assert result.exit_code == 2
    assert "x.png: cannot be written: No such file or directory; choose another place" in result.stderr
