"""Attempts that hang, and devices that fall off the bus: provoked for real, and looked at from outside."""

import json
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from images.store import ImageStore
from jobs.checkpoint.interval import interval_s
from jobs.contract import AttemptSpec, Phase, Status, verify
from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.workloads.counter_image import counter_image

ROOT = Path(__file__).parents[2]
NVML = ROOT / "tests" / "fakes" / "gpu" / "nvml" / "nvml.c"
WATCHFUL = {"watch_every_s": 0.2, "silence_floor_s": 4.0}


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    ImageStore().ensure("cpu", tmp_path_factory.mktemp("build") / "log.txt")
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}, **WATCHFUL) as made,
    ):
        yield made.start()
        made.assert_whole()


def program(daemon: Service, name: str, code: str, **fields: Any) -> Path:
    """Write the job file of a Python program that speaks to the runner through ``attach``."""
    directory = daemon.root / f"code-{name}"
    directory.mkdir()
    shutil.copy(ROOT / "gpu_job_runner" / "attach.py", directory)
    (directory / "main.py").write_text(textwrap.dedent(code))
    known = {
        "workload": {"kind": "program", "command": ["python3", "main.py"], "code": str(directory)},
        "image": "counter",
        "resources": {"cpus": 1, "memory": "256MiB"},
        "checkpoint": {"every_steps": 10},
        "retry": {"backoff": "0s"},
        "stop_grace": "1s",
    }
    return daemon.file(name, **{**known, **fields})


def records(daemon: Service, job_id: str) -> list[Json]:
    return [json.loads(line) for line in daemon.runner("policy", "journal", job_id).splitlines()]


def verdicts(daemon: Service, job_id: str) -> list[tuple[str, str, str]]:
    """Return moment, verb and rule of every decision about a job."""
    return [
        (kept["moment"], kept["verdict"]["do"], kept["verdict"]["rule"]) for kept in records(daemon, job_id)
    ]


# --- Hangs


def trains_between_two_saves(daemon: Service, job_id: str) -> bool:
    """Return True if a training that saves every 100 steps has saved and will not do so at once."""
    try:
        status = Status.model_validate_json(daemon.paths(job_id).status.read_bytes())
    except FileNotFoundError:
        return False
    step = status.step or 0
    return status.phase is Phase.TRAIN and step > 100 and step % 100 < 40


@pytest.mark.engine
def test_a_training_that_hangs_is_stopped_and_resumed_and_ends_with_the_same_bits(daemon: Service) -> None:
    frozen, quiet = (
        daemon.submit(daemon.training(name, 900, every=100, stop_grace="1s")) for name in ("frozen", "quiet")
    )
    until(lambda: trains_between_two_saves(daemon, frozen), "it trains", more=lambda: daemon.log(frozen))
    daemon.freeze(frozen)
    ended = daemon.ends(frozen)
    assert ended["attempt"] == 2
    assert verdicts(daemon, frozen) == [
        ("watch", "stop", "stalled"),
        ("exit", "resume", "hung"),
        ("exit", "finish", "done"),
    ]
    watched, end, _ = records(daemon, frozen)
    assert watched["facts"]["phase"] == "train"
    assert watched["facts"]["heartbeat.age_s"] >= watched["facts"]["heartbeat.limit_s"] >= 4.0
    assert end["facts"]["killed_by"] == "watch/stalled"
    assert "is stopped by rule stalled" in daemon.told(frozen)
    daemon.ends(quiet)
    assert daemon.job(quiet)["attempt"] == 1  # the same daemon left the other one alone
    saving = AttemptSpec.model_validate_json(daemon.paths(quiet).spec.read_bytes()).checkpoint
    status = Status.model_validate_json(daemon.paths(quiet).status.read_bytes())
    assert saving.mean_between_s is not None
    assert status.save_stall_s
    assert status.save_every_s == pytest.approx(
        interval_s(status.save_stall_s, saving.mean_between_s), rel=0.5
    )
    final = [verify(daemon.paths(job_id).lineage_dir / "final").state_sha256 for job_id in (frozen, quiet)]
    assert final[0] == final[1]


LONG_PHASES = """
    import os, threading
    from attach import attach

    def save(directory):
        (directory / "state").write_text("x")

    rest = threading.Event()
    with attach(save) as job:
        for step in job.steps(60):
            rest.wait(0.1)
            job.report(items=4)
            if step == 30:
                for phase in ("compile", "eval", "save"):
                    job.reports.beat(phase, step, 0.0)
                    rest.wait(6)
                    job.reports.beat("train", step, 0.0)
"""


@pytest.mark.engine
def test_a_long_compilation_evaluation_or_save_is_no_hang(daemon: Service) -> None:
    job_id = daemon.submit(program(daemon, "long-phases", LONG_PHASES))
    ended = daemon.ends(job_id)
    assert (ended["outcome"], ended["attempt"]) == ("succeeded", 1)
    assert verdicts(daemon, job_id) == [("exit", "finish", "done")]


HANGS_TWICE = """
    import os, threading
    from attach import attach

    def save(directory):
        (directory / "state").write_text("x")

    rest = threading.Event()
    with attach(save) as job:
        for step in job.steps(90):
            rest.wait(0.1)
            job.report(items=4)
            if step == 30 * int(os.environ["RUNNER_ATTEMPT"]) and step < 90:
                rest.wait()
"""


@pytest.mark.engine
def test_hangs_at_different_places_are_progress_and_do_not_add_up(daemon: Service) -> None:
    job_id = daemon.submit(program(daemon, "hangs-twice", HANGS_TWICE))
    ended = daemon.ends(job_id)
    assert (ended["outcome"], ended["attempt"]) == ("succeeded", 3)
    assert [rule for moment, _, rule in verdicts(daemon, job_id) if moment == "watch"] == ["stalled"] * 2
    begun = [attempt["resumed_from"] for attempt in ended["attempts"]]
    assert begun[0] is None
    assert 0 < begun[1] < begun[2]


# --- Devices


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[tuple[Service, Path]]:
    """A daemon on a machine with two devices, and the file that says how they are."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library, said = tmp_path / "libnvidia-ml.so.1", tmp_path / "devices"
    flags = ("-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    subprocess.run(["cc", *flags, "-o", str(library), str(NVML)], check=True)
    said.write_text("gpu GPU-1 1000 L4\ngpu GPU-2 1000 L4\n")
    with service(executor="process", watch_every_s=0.2) as made:
        made.env.update(LD_LIBRARY_PATH=str(tmp_path), RUNNER_FAKE_NVML=str(said))
        yield made.start(), said


WAITS_FOR_A_DEVICE = """
    import os, pathlib, threading
    from attach import attach

    def save(directory):
        (directory / "state").write_text("x")

    rest = threading.Event()
    with attach(save) as job:
        for step in job.steps(1000):
            rest.wait(0.02)
            if os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1":
                if pathlib.Path(os.environ["LOST"]).exists():
                    raise RuntimeError("CUDA error: unspecified launch failure")
            elif step >= 20:
                break
"""


def on_a_device(daemon: Service, name: str, lost: Path) -> str:
    file = program(
        daemon,
        name,
        WAITS_FOR_A_DEVICE,
        image="auto",
        accelerator="cuda",
        resources={"cpus": 1, "memory": "256MiB", "gpus": 1},
        environment={"LOST": str(lost)},
    )
    job_id = daemon.submit(file)
    daemon.reaches(job_id, "running")
    return job_id


def test_a_device_that_falls_off_the_bus_is_left_and_not_lent_again(devices: tuple[Service, Path]) -> None:
    daemon, said = devices
    lost = daemon.root / "lost"
    job_id = on_a_device(daemon, "loses-its-device", lost)
    said.write_text("gpu GPU-1 1000 L4\ngpu GPU-2 1000 L4\nis GPU-1 error=15\n")
    until(lambda: "no longer answers" in daemon.told(job_id), "its owner is told", more=daemon.log_tail)
    lost.touch()
    ended = daemon.ends(job_id)
    assert (ended["outcome"], ended["attempt"]) == ("succeeded", 2)
    end = next(kept for kept in records(daemon, job_id) if kept["moment"] == "exit")
    assert (end["verdict"]["rule"], end["facts"]["device.lost"]) == ("device-lost", True)
    assert end["verdict"]["with"] == {"device": "other"}
    assert end["verdict"]["charged"] is False
    told = daemon.told(job_id)
    assert "placed on GPU-1" in told
    assert "placed on GPU-2" in told


def test_a_device_that_needs_a_reset_holds_its_job_for_a_person(devices: tuple[Service, Path]) -> None:
    daemon, said = devices
    lost = daemon.root / "lost"
    job_id = on_a_device(daemon, "needs-a-reset", lost)
    said.write_text("gpu GPU-1 1000 L4\ngpu GPU-2 1000 L4\nis GPU-1 recovery=1\n")
    until(
        lambda: "devices.quarantined" in daemon.daemon_log(),
        "the device is not allocated",
        more=daemon.log_tail,
    )
    lost.touch()
    daemon.reaches(job_id, "held")
    [end] = [kept for kept in records(daemon, job_id) if kept["moment"] == "exit"]
    assert (end["verdict"]["do"], end["verdict"]["rule"]) == ("hold", "device-needs-reset")


def test_a_driver_that_never_answers_again_holds_nobody_up(devices: tuple[Service, Path]) -> None:
    daemon, said = devices
    said.write_text("gpu GPU-1 1000 L4\ngpu GPU-2 1000 L4\nis GPU-1 hang=1\nis GPU-2 hang=1\n")
    first, second = (on_a_device(daemon, name, daemon.root / "lost") for name in ("first", "second"))
    assert daemon.ends(second)["outcome"] == "succeeded"
    [end] = [kept for kept in records(daemon, second) if kept["moment"] == "exit"]
    assert end["facts"].get("device.lost") is not True  # a look from before it hung may still count
    assert end["facts"].get("device.recovery", "none") == "none"
    assert daemon.state_of(first) == "running"
    daemon.runner("cancel", first)
    assert daemon.ends(first)["outcome"] == "cancelled"
