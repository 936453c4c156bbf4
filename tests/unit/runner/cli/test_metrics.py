"""``runner metrics`` and ``runner plot``."""

import json
from typing import Any

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke

LOSS = [[1000.0 + 3600 * n, 10 * n, 1 / (n + 1), 1 / (n + 1), 1 / (n + 1), 1] for n in range(5)]
UTIL = [[1000.0 + n, None, 40.0, 30.0, 50.0, 2] for n in range(3)]


@pytest.fixture(autouse=True)
def job(api: FakeApi) -> dict[str, Any]:
    job = api.add("train")
    api.curves[job["id"]] = {"loss": LOSS, "device 0 util": UTIL}
    return job


def test_a_pipe_gets_every_point(invoke: Invoke) -> None:
    lines = invoke("metrics", "train").stdout.splitlines()
    assert len(lines) == 8
    assert lines[0] == "loss,1970-01-01T00:16:40.000Z,0,1.0,1.0,1.0,1"
    assert lines[-1] == "device 0 util,1970-01-01T00:16:42.000Z,,40.0,30.0,50.0,2"


def test_csv_has_a_header_and_the_named_curves_alone(invoke: Invoke) -> None:
    lines = invoke("metrics", "train", "--csv", "--name", "device 0 util").stdout.splitlines()
    assert lines[0] == "name,time,step,mean,least,largest,values"
    assert [line.partition(",")[0] for line in lines[1:]] == ["device 0 util"] * 3


def test_json_is_what_the_daemon_said(invoke: Invoke) -> None:
    said = json.loads(invoke("metrics", "train", "--json").stdout)
    assert (said["name"], said["curves"]["loss"]) == ("train", LOSS)


@pytest.mark.parametrize("command", ["metrics", "plot"])
def test_a_curve_that_is_not_there_is_named_with_those_that_are(invoke: Invoke, command: str) -> None:
    result = invoke(command, "train", "--name", "lost")
    assert result.exit_code == 2
    assert result.stderr == "train (job 000001): has no curve lost; it has loss, device 0 util\n"


def test_a_plot_shows_the_jobs_in_a_legend_and_the_range(invoke: Invoke, api: FakeApi) -> None:
    other = api.add("other")
    api.curves[other["id"]] = {"loss": [[1.0, 0, 2.0, 2.0, 2.0, 1], [2.0, 50, 1.0, 1.0, 1.0, 1]]}
    shown = invoke("plot", "train", "other").stdout
    assert "train (000001)" in shown
    assert "other (000002)" in shown
    assert "(loss)" in shown
    assert "2 |" in shown
    assert "(step)" in shown


def test_what_has_no_steps_is_drawn_over_time(invoke: Invoke) -> None:
    result = invoke("plot", "train", "--name", "device 0 util")
    assert (result.exit_code, result.stderr.strip()) == (
        2,
        "train (job 000001): device 0 util has no steps; --x time",
    )
    assert "(hours)" in invoke("plot", "train", "--name", "device 0 util", "--x", "time").stdout


def test_a_job_without_numbers_says_so(invoke: Invoke, api: FakeApi) -> None:
    api.curves.clear()
    assert invoke("plot", "train").stderr == "train (job 000001): has reported no numbers\n"


def test_jobs_without_numbers_are_left_out_and_named(invoke: Invoke, api: FakeApi) -> None:
    api.add("idle")
    result = invoke("plot", "train", "idle")
    assert result.exit_code == 0
    assert "train (000001)" in result.stdout
    assert result.stderr.endswith("idle (job 000002): has reported no numbers; left out\n")


def test_a_picture_needs_a_format(invoke: Invoke) -> None:
    assert "must end in .png, .svg, .pdf" in invoke("plot", "train", "-o", "loss.bmp").stderr
