import time
from datetime import UTC, datetime

import pytest

from runner.cli.list_options import COLUMNS, STATES
from tests.fakes.daemon.api import FakeApi, ended
from tests.unit.runner.cli.conftest import Invoke


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


@pytest.fixture
def three(api: FakeApi) -> FakeApi:
    api.add("runs", owner="ada", labels={"a": "b"}, gpus=["GPU-1"])
    api.add("waits", owner="bob", state="queued", progress=None)
    api.add("broke", owner="bob", **ended("failed"), since=ago(7200))
    return api


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("--state", "running"), ["runs"]),
        (("--state", "queued,failed"), ["waits", "broke"]),
        (("--state", "queued", "--state", "running"), ["runs", "waits"]),
        (("--state", "active"), ["runs", "waits"]),
        (("--state", "ended"), ["broke"]),
        (("--user", "bob"), ["waits", "broke"]),
        (("--user", "bob", "--user", "ada", "--state", "active"), ["runs", "waits"]),
        (("--since", "1h"), ["runs", "waits"]),
        (("--since", "3h"), ["runs", "waits", "broke"]),
        (("--user", "bob", "--limit", "1"), ["waits"]),
        (("--user", "nobody"), []),
    ],
)
def test_jobs_are_chosen_by_state_user_and_time(
    three: FakeApi, invoke: Invoke, args: tuple[str, ...], names: list[str]
) -> None:
    assert [line.split("\t")[1] for line in invoke("list", *args).stdout.splitlines()] == names
    assert "all=0" in three.asked[-1][1] or "--state" in args


def test_a_time_before_yesterday_asks_for_all_jobs(three: FakeApi, invoke: Invoke) -> None:
    invoke("list", "--since", "3d")
    assert "all=1" in three.asked[-1][1]


def test_columns_are_printed_in_the_order_given(three: FakeApi, invoke: Invoke) -> None:
    result = invoke("list", "--columns", "Name, loss,gpus,labels,rate", "--state", "running")
    assert result.stdout == "runs\t2.5\tGPU-1\ta=b\t5123.0\n"
    assert three.jobs


def test_a_job_that_has_ended_is_listed_with_its_last_numbers(api: FakeApi, invoke: Invoke) -> None:
    told = {"step": 90, "total_steps": 100, "loss": 0.25, "items_per_s": 7.0}
    api.add("done", **ended(), last_progress=told, saved_step=80)
    api.add("quiet", **ended(), last_progress=None, saved_step=80)
    result = invoke("list", "--columns", "name,step,loss,rate")
    assert result.stdout == "done\t90/100\t0.25\t7.0\nquiet\t80\t-\t-\n"
    assert "last=1" in api.asked[-1][1]
    invoke("list", "--sweep", "done", "--columns", "loss")
    assert "last=1" in api.asked[-1][1]
    steps = [line.split("\t")[6] for line in invoke("list").stdout.splitlines()]
    assert steps == ["90/100", "80"]
    assert "last=1" in api.asked[-1][1]
    invoke("list", "--columns", "name")
    assert "last" not in api.asked[-1][1]


@pytest.mark.usefixtures("three")
def test_every_column_has_a_value_of_every_job(invoke: Invoke) -> None:
    result = invoke("list", "--columns", ",".join(COLUMNS))
    assert [len(line.split("\t")) for line in result.stdout.splitlines()] == [len(COLUMNS)] * 3


@pytest.mark.parametrize(
    ("args", "fact"),
    [
        (("--state", "runing"), f"'runing' is none of {', '.join(STATES)}"),
        (("--columns", "id,color"), "'color' is none of id, name"),
        (("--columns", " , "), "names no column"),
        (("--since", "yesterday"), "yesterday"),
        (("--sweep", "1", "--mine"), "have one owner"),
    ],
)
def test_a_mistake_is_one_line(api: FakeApi, invoke: Invoke, args: tuple[str, ...], fact: str) -> None:
    result = invoke("list", *args)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert fact in result.stderr
    assert not api.asked


def test_a_job_is_shown_with_what_it_runs_and_uses(api: FakeApi, invoke: Invoke) -> None:
    file = {
        "workload": {"kind": "program", "command": ["python", "my train.py"], "code": None},
        "resources": {"gpus": 2, "cpus": 1.5, "memory": 3 * 1024**3, "shm": None, "time_limit": "2h"},
        "image": {"name": "auto", "requirements": ["tqdm", "x"], "base": "lab"},
    }
    progress = {"phase": "train", "time": 1.0, "step": 3, "loss": 0.5, "metrics": {"acc": 0.75}}
    api.add("train", revision={"job": file}, progress=progress)
    shown = dict(line.split("\t", 1) for line in invoke("show", "train").stdout.splitlines())
    assert shown["command"] == "python 'my train.py'"
    assert shown["resources"] == "2 GPUs, 1.5 CPUs, 3 GiB memory, at most 2h"
    assert shown["packages"] == "tqdm, x, on lab"
    assert shown["metrics"] == "loss=0.5, acc=0.75"


def test_a_job_of_several_nodes_is_shown_with_what_each_has(api: FakeApi, invoke: Invoke) -> None:
    asked = {"nodes": 4, "gpus": 8, "cpus": 16.0, "memory": 64 * 1024**3, "time_limit": None}
    api.add("train", revision={"job": {"resources": asked}})
    shown = dict(line.split("\t", 1) for line in invoke("show", "train").stdout.splitlines())
    assert shown["resources"] == "4 nodes, each with 8 GPUs, 16 CPUs, 64 GiB memory"
