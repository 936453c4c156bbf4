"""The environment that follows from a profile, and that nobody else may say."""

from pathlib import PurePosixPath

import pytest

from jobs.contract import Profile, thread_count
from runner.files.field_checks import check_variable_name
from runner.files.profiles.environment import build_environment
from runner.files.profiles.load import Accelerator

CACHE = PurePosixPath("/job/cache")
SCRATCH = PurePosixPath("/tmp")


def variables(accelerator: Accelerator = "cpu", **switches: object) -> dict[str, str]:
    profile = Profile.model_validate(switches)
    return dict(build_environment(profile, accelerator, 4, CACHE, SCRATCH))


@pytest.mark.parametrize(
    ("cpus", "switches", "threads"),
    [
        (4, {}, 4),
        (1.5, {}, 1),
        (0.5, {}, 1),
        (8, {"loader_workers": 3}, 2),
        (4, {"loader_workers": 4}, 1),
        (8, {"loader_workers": 3, "threads": 5}, 5),
        (2, {"threads": 1}, 1),
    ],
)
def test_threads_are_the_quota_shared_with_the_loader_processes(
    cpus: float, switches: dict[str, int], threads: int
) -> None:
    profile = Profile.model_validate(switches)
    assert build_environment(profile, "cpu", cpus, CACHE, SCRATCH)["OMP_NUM_THREADS"] == str(threads)
    assert thread_count(profile, cpus) == threads


def test_waiting_threads_do_not_spin() -> None:
    assert variables()["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize("accelerator", ["cuda", "rocm"])
@pytest.mark.parametrize(
    ("allocator", "value"),
    [("default", "expandable_segments:False"), ("expandable_segments", "expandable_segments:True")],
)
def test_exactly_one_variable_steers_the_allocator(
    accelerator: Accelerator, allocator: str, value: str
) -> None:
    found = {
        name: v for name, v in variables(accelerator, allocator=allocator).items() if "ALLOC_CONF" in name
    }
    assert found == {"PYTORCH_CUDA_ALLOC_CONF": value}


def test_launches_block_where_that_was_asked_for() -> None:
    assert variables("cuda")["CUDA_LAUNCH_BLOCKING"] == "0"
    assert variables("cuda", launch_blocking=True)["CUDA_LAUNCH_BLOCKING"] == "1"
    assert "AMD_SERIALIZE_KERNEL" not in variables("rocm")
    assert variables("rocm", launch_blocking=True)["AMD_SERIALIZE_KERNEL"] == "3"


def test_a_deterministic_profile_fixes_the_workspace_of_the_matrix_products() -> None:
    assert variables("cuda")["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "CUBLAS_WORKSPACE_CONFIG" not in variables("cuda", deterministic=False)


def test_a_cpu_gets_nothing_that_speaks_to_a_device() -> None:
    assert set(variables()) == {
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
    }


@pytest.mark.parametrize(("kept", "below"), [(True, CACHE), (False, SCRATCH)])
def test_compiled_code_lies_in_the_jobs_own_cache_or_dies_with_the_attempt(
    *, kept: bool, below: PurePosixPath
) -> None:
    found = variables(compile_cache=kept)
    assert found["TORCHINDUCTOR_CACHE_DIR"] == str(below / "inductor")
    assert found["TRITON_CACHE_DIR"] == str(below / "triton")


def test_a_job_file_can_set_none_of_these_variables() -> None:
    ours = {
        name
        for accelerator in ("cpu", "cuda", "rocm")
        for name in variables(accelerator, launch_blocking=True)
    }
    for name in ours | {"PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "HIP_LAUNCH_BLOCKING"}:
        with pytest.raises(ValueError, match="is set by the runner"):
            check_variable_name(name)


def test_a_refused_variable_of_the_profile_names_the_command_that_sets_it() -> None:
    with pytest.raises(ValueError, match="env OMP_NUM_THREADS=VALUE before the command"):
        check_variable_name("OMP_NUM_THREADS")
    with pytest.raises(ValueError, match=r"is set by the runner; remove it$"):
        check_variable_name("HOME")
