"""The first lines of a training say what is in force."""

import json

import pytest

from jobs.contract import Effective, ExitCode, Profile, RunPaths, Status
from jobs.training.startup import startup_lines
from jobs.training.switches import Switches
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


def effective(switches: Switches, device: str = "cuda:0") -> Effective:
    return Effective(
        device=device,
        device_name="NVIDIA X",
        precision="bf16",
        threads=4,
        micro_batch=8,
        accumulation=1,
        parameters=1234567,
        train_items=1000,
        switches=dict(switches.report()),
    )


def on_a_gpu(**profile: object) -> Switches:
    switches = Switches(Profile.model_validate(profile))
    for name in (
        "tf32_matmul",
        "tf32_cudnn",
        "cudnn_benchmark",
        "deterministic",
        "attention",
        "loader_workers",
    ):
        switches.applied(name)
    return switches


def test_a_gpu_is_named_with_its_memory_and_how_it_rounds() -> None:
    switches = on_a_gpu(deterministic=False, tf32_matmul=True, loader_workers=2)
    switches.applied("placement", note="1,000 bytes on cuda:0")
    lines = startup_lines(
        effective(switches), hardware="79.2 GiB, capability 9.0", item="token", compile_s=None
    )
    assert list(lines) == [
        "1,234,567 parameters, 1,000 tokens, cuda:0 (NVIDIA X, 79.2 GiB, capability 9.0), 4 threads, bf16",
        "numbers: TF32 in products on, in cuDNN off; cuDNN benchmark off; deterministic off",
        "data: host (1,000 bytes on cuda:0); batches made by 2 process(es)",
        "attention: fused",
    ]


def compilation(switches: Switches) -> str:
    [line] = [
        line
        for line in startup_lines(effective(switches), hardware="", item="row", compile_s=34.25)
        if line.startswith("compile: ")
    ]
    return line


@pytest.mark.parametrize(("dynamic", "shapes"), [(False, "static"), (True, "dynamic"), (None, "automatic")])
def test_what_was_compiled_is_told_with_its_time(shapes: str, *, dynamic: bool | None) -> None:
    switches = on_a_gpu(compile="default", compile_dynamic=dynamic)
    switches.applied("placement")
    switches.applied("compile", note="1 graph(s)")
    said = compilation(switches)
    assert said == f"compile: default, {shapes} shapes, graph breaks allowed: 1 graph(s) in 34.2 s"


def test_a_compilation_that_was_given_up_tells_why() -> None:
    switches = on_a_gpu(compile="default")
    switches.applied("placement")
    switches.fell_back("compile", "off", "no compiler")
    assert compilation(switches) == "compile: default was given up after 34.2 s: no compiler"


def test_a_training_on_a_cpu_begins_with_what_concerns_one(
    job: JobDir, capfd: pytest.CaptureFixture[str]
) -> None:
    assert job.train() == ExitCode.FINISHED
    said = capfd.readouterr().out.splitlines()
    first = next(n for n, line in enumerate(said) if " parameters, " in line)
    assert said[first + 1] == "data: host; batches made by the trainer"
    assert said[first + 2] == "attention: fused"
    assert not any(line.startswith(("numbers: ", "compile: ")) for line in said)


def test_the_gradient_norm_before_clipping_is_in_log_metrics_and_status(
    job: JobDir, capfd: pytest.CaptureFixture[str]
) -> None:
    clip = 1e-3
    assert make(job).gradient_norm is None
    training = make(job, workload={"grad_clip": clip})
    training.update(0)
    assert (training.gradient_norm or 0.0) > clip
    assert job.train(workload={"grad_clip": clip, "log_every": 1}) == ExitCode.FINISHED
    paths = RunPaths(job.root, job.attempts, 1)
    steps = [json.loads(line) for line in paths.metrics.read_text().splitlines() if "learning_rate" in line]
    assert steps
    assert all(line["gradient_norm"] > clip for line in steps)
    status = Status.model_validate_json(paths.status.read_bytes())
    assert status.gradient_norm == pytest.approx(steps[-1]["gradient_norm"])
    assert "  gradient norm " in capfd.readouterr().out
