import logging

import pytest

pytest.importorskip("submitit", reason="submitit is not installed")

from gpu_job_runner import submitit_plugin
from gpu_job_runner.submitit_plugin import FOLDER, RunnerInfoWatcher, job_fields
from runner.base.errors import Unavailable, UsageError
from tests.fakes.daemon.api import FakeApi

SHARED = {
    "name": "detr",
    "mem_gb": 160,
    "gpus_per_node": 4,
    "tasks_per_node": 4,
    "cpus_per_task": 10,
    "nodes": 1,
    "timeout_min": 90,
}


def test_the_shared_parameters_become_fields_and_a_container_sees_the_folder() -> None:
    extra = {"fields": {"image": {"requirements": ["scipy"]}, "priority": 7}}
    made = job_fields({**SHARED, **extra}, "/exp/run/%j", "/exp/run", None, in_container=True)
    workload = made["workload"]
    assert made["resources"] == {
        "nodes": 1,
        "cpus": 40.0,
        "memory": "160GiB",
        "gpus": 4,
        "time_limit": "90m",
    }
    assert (workload["launcher"], workload["processes"], workload["code"]) == ("gang", 4, ".")
    assert (workload["command"][0], workload["command"][-1]) == ("python3", f"{FOLDER}/%j")
    assert made["mounts"] == [{"source": "/exp/run", "target": FOLDER, "read_only": False}]
    assert made["image"] == {"requirements": ["submitit", "scipy"]}
    assert (made["name"], made["priority"]) == ("detr", 7)
    assert made["checkpoint"] == {"keep_files": True}  # it saves by itself: nobody says that it begins anew


def test_several_nodes_have_a_launcher_with_one_task_each_too() -> None:
    workload = job_fields({"nodes": 2}, "/exp", "/exp", None, in_container=False)["workload"]
    assert (workload["launcher"], workload["processes"]) == ("gang", 1)
    assert "launcher" not in job_fields({"nodes": 1}, "/exp", "/exp", None, in_container=False)["workload"]


def test_a_process_sees_the_folder_where_it_is() -> None:
    made = job_fields({}, "/exp/%j", "/exp", "/venv/bin/python", in_container=False)
    assert made["workload"]["command"][0] == "/venv/bin/python"
    assert made["workload"]["command"][-1] == "/exp/%j"
    assert "mounts" not in made


def test_a_parameter_that_would_be_dropped_is_refused() -> None:
    with pytest.raises(UsageError, match="qos: the runner has no such parameter; use runner_fields"):
        job_fields({"qos": "high"}, "/exp", "/exp", None, in_container=False)


def test_a_folder_below_data_has_the_same_path_in_a_container() -> None:
    made = job_fields({}, "/data/exp/%j", "/data/exp", None, in_container=True)
    assert made["workload"]["command"][-1] == "/data/exp/%j"
    assert made["mounts"] == [{"source": "/data/exp", "target": "/data/exp", "read_only": False}]


def watching(api: FakeApi, *states: str) -> RunnerInfoWatcher:
    watcher = RunnerInfoWatcher(delay_s=5)
    for state in states:
        watcher.register_job(api.add(state, state=state)["id"])
    watcher.update()
    return watcher


def test_a_held_job_that_is_released_goes_on(api: FakeApi) -> None:
    watcher = watching(api, "held")
    assert watcher.is_done("000001", mode="cache")
    api.jobs["000001"]["state"] = "running"
    watcher.update()
    assert watcher.get_state("000001", mode="cache") == "RUNNING"
    assert not watcher.is_done("000001", mode="cache")


def test_a_job_that_the_store_has_forgotten_is_done_and_the_others_are_watched(api: FakeApi) -> None:
    watcher = watching(api, "running", "running")
    del api.jobs["000001"]
    api.jobs["000002"].update(state="finished", outcome="succeeded")
    watcher.update()
    assert watcher.get_state("000001", mode="cache") == "FORGOTTEN"
    assert watcher.is_done("000001", mode="cache")
    assert watcher.get_state("000002", mode="cache") == "COMPLETED"
    asked = len(api.asked)
    watcher.update()
    assert len(api.asked) == asked


def test_what_was_known_stays_while_no_daemon_answers(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = watching(api, "running")

    def away() -> None:
        raise Unavailable("no daemon answers")

    monkeypatch.setattr(submitit_plugin, "connect", away)
    monkeypatch.setattr(logging.getLogger("submitit"), "propagate", True)
    watcher.update()
    assert watcher.get_state("000001", mode="cache") == "RUNNING"
    assert "no daemon answers; the states of jobs may be old" in caplog.text
