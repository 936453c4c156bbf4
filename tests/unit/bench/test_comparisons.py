"""Comparisons run the same thing on both sides, and leave nothing behind."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench.cases import burst, first_line, resume
from bench.rivals import container, spooler
from bench.rivals.slurm import ClusterConfig, Ports, render_configuration
from bench.support import history, interleave, packages
from bench.support.jobfile import CPUS, job_text
from bench.support.result import CannotMeasure
from runner.adapters.docker.hardening import HardeningSettings, engine_arguments
from runner.core.job.lifecycle import advance
from runner.core.job.model import Job
from runner.core.job.states import Finished, Outcome, Preparing
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner
from runner.files.job.load import parse_job

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ARGV = ("python", "-P", "-m", "jobs", "--root", "/job", "--attempt", "1", "--lineage", "1")


def plan() -> container.DockerPlan:
    request = LaunchRequest(
        key=Key("bench", "1", 1),
        job_name="bench",
        owner=Owner(1000, 1000, "somebody"),
        image="IMAGE",
        argv=ARGV,
        run_dir=Path("/state/jobs/1"),
        log=Path("/state/jobs/1/attempts/1/log.txt"),
        limits=Limits(2.0, 1024**3),
    )
    arguments = engine_arguments(request, HardeningSettings("bench"))
    return container.make_plan("sha256:abc", {"engine": arguments, "spec": {}})


def test_docker_gets_the_program_the_user_and_the_variables_of_the_runner() -> None:
    argv = plan().bare_argv("name", Path("/elsewhere"))
    assert tuple(argv[-len(ARGV) - 1 :]) == ("sha256:abc", *ARGV)
    assert argv[argv.index("--user") + 1] == "1000:1000"
    assert argv[argv.index("--mount") + 1] == "type=bind,source=/elsewhere,target=/job"
    variables = [argv[place + 1] for place, part in enumerate(argv) if part == "--env"]
    assert variables == plan().config["Env"]


def test_docker_can_get_the_walls_of_the_runner_as_well() -> None:
    argv = plan().hardened_argv("name", Path("/elsewhere"))
    assert {"--init", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"} < set(argv)
    assert {"--memory=1073741824", "--memory-swap=1073741824", "--cpus=2", "--pids-limit=4096"} < set(argv)
    assert tuple(argv[-len(ARGV) - 1 :]) == ("sha256:abc", *ARGV)


def test_plain_processes_are_not_compared_with_docker() -> None:
    with pytest.raises(CannotMeasure, match="no container engine"):
        container.make_plan("none", {"engine": {"argv": []}, "spec": {}})


@pytest.mark.parametrize("plan", [ClusterConfig(), ClusterConfig(2, "UP", burst.TUNING)])
def test_slurm_touches_nothing_outside_its_directory(plan: ClusterConfig) -> None:
    text = render_configuration(Path("/bench/rival"), "somebody", Ports(10001, 10002), plan)
    settings = dict(line.split("=", 1) for line in text.splitlines())
    files = ("AuthInfo", "StateSaveLocation", "SlurmdSpoolDir", "SlurmctldPidFile", "SlurmdPidFile")
    assert all(settings[name].removeprefix("socket=").startswith("/bench/rival/") for name in files)
    assert (settings["SlurmctldPort"], settings["SlurmdPort"]) == ("10001", "10002")
    assert settings["PartitionName"].endswith(f"State={plan.state}")


@pytest.mark.parametrize("said", ["0", "-1", "1", "", "none\n", "-4242"])
def test_what_names_no_single_process_is_never_sent_a_signal(said: str) -> None:
    assert spooler.process_number(said) is None


def test_the_process_of_the_blocking_job_is_read() -> None:
    assert spooler.process_number("4242\n") == 4242


def test_the_measured_job_file_is_valid_and_takes_all_that_a_stage_lends() -> None:
    job = parse_job(job_text(steps=10**9, log_every=1, backoff_s=0).encode(), Path("/job.yaml"))
    assert job.resources.cpus == CPUS
    assert job.retry.backoff == timedelta(0)


def test_the_finished_jobs_have_had_a_whole_life() -> None:
    job = Job("1", Preparing(NOW))
    for event in history.job_events(NOW):
        job, _ = advance(job, event)
    assert isinstance(job.state, Finished)
    assert (job.state.outcome, job.attempts) == (Outcome.SUCCEEDED, 1)


def test_the_way_to_the_first_line_is_taken_from_the_events() -> None:
    kinds = ("submitted", "image_ready", "placed", "launched")
    events = {kind: (NOW + timedelta(seconds=number)).isoformat() for number, kind in enumerate(kinds)}
    ways = first_line.split_by_events(events, NOW.timestamp() + 3.5)
    assert ways == {
        "image looked up": 1,
        "placed": 1,
        "container launched": 1,
        "program's first line": 0.5,
    }


@pytest.mark.parametrize(
    ("log", "seen"),
    [
        (b"job 1, revision 1\nstep 1/300  loss 5.6\n", True),
        (b"step 26/300  loss", True),
        (b"resumed from step 25/300\n", False),
        (b"", False),
    ],
)
def test_only_a_line_about_a_step_counts_as_training(log: bytes, *, seen: bool) -> None:
    assert (resume.STEP.search(log) is not None) is seen


def test_contestants_take_turns_and_warm_ups_do_not_count() -> None:
    calls: list[str] = []

    def contestant(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = interleave.interleave(2, 1, {"a": lambda: contestant("a"), "b": lambda: contestant("b")})
    assert calls == ["a", "b"] * 3
    assert found == {"a": (3.0, 5.0), "b": (4.0, 6.0)}


def test_nothing_is_installed_where_that_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_NO_INSTALL", "1")
    with pytest.raises(CannotMeasure, match="RUNNER_NO_INSTALL=1 forbids"):
        packages.require(("no-such-program",), ("no-such-package",), may_install=True)


def test_a_quick_measurement_installs_nothing() -> None:
    with pytest.raises(CannotMeasure, match="a quick measurement installs nothing"):
        packages.require(("no-such-program",), ("no-such-package",), may_install=False)
