"""The options of sbatch, and what its errors are about; the errors are those of Slurm 22.05."""

import os
from datetime import timedelta
from typing import Any

import pytest

from runner.adapters.slurm.check import SlurmCheck, explain_refusal
from runner.adapters.slurm.commands import OVER, PASSES, describe_failure
from runner.adapters.slurm.options import SlurmRules, resource_options
from runner.core.ports.executor import BatchOptions, BatchRequest, GpuRequest, Limits
from runner.core.ports.users import Owner

LIMITS = Limits(1.5, 2**30 + 1)


def test_resources_are_rounded_up() -> None:
    options = resource_options(BatchRequest(LIMITS), SlurmRules())
    assert options == [
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=2",
        "--mem=1025M",
        "--signal=B:TERM@30",
    ]


@pytest.mark.parametrize(
    ("wanted", "types", "option"),
    [
        (GpuRequest(2), {}, "--gres=gpu:2"),
        (GpuRequest(1, ("H100",)), {}, "--gres=gpu:h100:1"),
        (GpuRequest(4, ("A100", "NVIDIA H100 80GB")), {"h100": "h100_80g"}, "--gres=gpu:h100_80g:4"),
        (GpuRequest(1, ("a100:8,gpu:h100",)), {}, "--gres=gpu:1"),
        (GpuRequest(1, ("RTX A6000", "A6000")), {}, "--gres=gpu:a6000:1"),
        (GpuRequest(1, ("RTX A6000",)), {"a6000": "rtx"}, "--gres=gpu:rtx:1"),
    ],
)
def test_gpus_are_asked_for_by_count_and_type(wanted: GpuRequest, types: dict[str, str], option: str) -> None:
    assert option in resource_options(BatchRequest(LIMITS, wanted), SlurmRules(gpu_types=types))


@pytest.mark.parametrize("model", ["a100:8,gpu:h100", "RTX A6000", "h100=2"])
def test_a_model_that_is_no_type_in_slurm_is_refused_before_slurm_is_asked(model: str) -> None:
    nothing: Any = None
    asked = BatchRequest(LIMITS, GpuRequest(1, (model,)))
    found = SlurmCheck(nothing, SlurmRules()).problem(asked, Owner(1001, 1001, "ada"))
    assert found is not None
    assert found[0] == "devices.model"
    assert found[1].startswith(f'"{model}" is no type of a GPU in Slurm; sinfo')


@pytest.mark.parametrize(
    ("named", "any_partition", "found"),
    [
        ("gpu,admin", True, "slurm.partition"),
        ("gpu,admin", False, None),
        ("gpu", True, None),
        (None, True, None),
    ],
)
def test_a_partition_that_is_for_root_alone_is_nobodys_although_root_submits(
    named: str | None, found: str | None, monkeypatch: pytest.MonkeyPatch, *, any_partition: bool
) -> None:
    class Commands:
        def ask(self, *words: str) -> str:
            is_roots = "YES" if words[-1] == "admin" else "NO"
            return f"PartitionName={words[-1]} RootOnly={is_roots} ReqResv=NO\n"

    commands: Any = Commands()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    asked = BatchRequest(LIMITS, options=BatchOptions(partition=named))
    problem = SlurmCheck(commands, SlurmRules(), any_partition).problem(asked, Owner(1001, 1001, "ada"))
    assert (None if problem is None else problem[0]) == found
    assert problem is None or problem[1].startswith('"admin" is for root alone; ')


def test_the_time_limit_leaves_time_to_save_and_slurms_is_later_than_ours() -> None:
    request = BatchRequest(LIMITS, time_left=timedelta(hours=1), grace=timedelta(minutes=2))
    options = resource_options(request, SlurmRules())
    assert {"--time=64", "--signal=B:TERM@120"} <= set(options)


def test_the_job_file_goes_before_the_settings_and_nothing_overrides_our_own() -> None:
    asked = BatchOptions(partition="gpu", constraint="a&b", extra=("--exclusive", "--nodes=9"))
    options = resource_options(BatchRequest(LIMITS, options=asked), SlurmRules("main", "physics", "high"))
    assert options[:3] == ["--exclusive", "--nodes=9", "--nodes=1"]
    assert options[-4:] == ["--partition=gpu", "--account=physics", "--qos=high", "--constraint=a&b"]
    full = BatchOptions("p", "a", "q", "c", "r")
    named = resource_options(BatchRequest(LIMITS, options=full), SlurmRules("x", "y", "z"))
    assert named[-5:] == ["--partition=p", "--account=a", "--qos=q", "--constraint=c", "--reservation=r"]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("sbatch: invalid partition specified: nope; allocation failure: Invalid partition name specified",
         "slurm.partition"),
        ("sbatch: allocation failure: Invalid feature specification", "slurm.constraint"),
        ("sbatch: allocation failure: Requested reservation is invalid", "slurm.reservation"),
        ("sbatch: allocation failure: Requested node configuration is not available", "resources"),
        ("sbatch: allocation failure: Invalid account or account/partition combination specified",
         "slurm.account"),
        ("sbatch: allocation failure: Invalid qos specification", "slurm.qos"),
        ("sbatch: allocation failure: Requested time limit is invalid (missing or exceeds some limit)",
         "resources.time_limit"),
        ("sbatch: allocation failure: Job violates accounting/QOS policy (job submit limit)", "slurm.qos"),
        ("sbatch: something else", "slurm"),
    ],
)  # fmt: skip
def test_a_refusal_of_slurm_is_about_a_field(said: str, field: str) -> None:
    found, fact = explain_refusal(said)
    assert found == field
    assert fact.startswith("Slurm says: ")


@pytest.mark.parametrize(
    "stderr",
    [
        "squeue: error: slurm_receive_msg: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        'sbatch: error: Munge encode failed: Failed to access "/run/munge": No such file or directory',
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)",
        "sbatch: error: Batch job submission failed: I/O error writing script/environment to file",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "sbatch: error: Batch job submission failed: Requested operation is presently disabled",
    ],
)
def test_an_error_that_passes_proves_nothing(stderr: str) -> None:
    assert PASSES.search(describe_failure(stderr))


@pytest.mark.parametrize(
    "stderr",
    [
        "sbatch: error: Batch job submission failed: Invalid partition name specified",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Invalid --uid specification",
    ],
)
def test_a_refusal_stays_one(stderr: str) -> None:
    said = describe_failure(stderr)
    assert not PASSES.search(said)
    assert not OVER.search(said)
    assert not said.startswith("sbatch:")


@pytest.mark.parametrize(
    "stderr",
    [
        "scancel: error: Kill job error on job id 5: Invalid job id specified",
        "scancel: error: Kill job error on job id 3: Job/step already completing or completed",
    ],
)
def test_a_job_that_is_over_is_no_refusal(stderr: str) -> None:
    assert OVER.search(describe_failure(stderr))


def test_a_failure_that_says_nothing_is_told_as_such() -> None:
    assert describe_failure("\n \n") == "failed and said nothing"


def test_each_of_several_nodes_has_one_launcher() -> None:
    options = resource_options(BatchRequest(LIMITS, nodes=3), SlurmRules())
    assert options[:3] == ["--nodes=3", "--ntasks=3", "--ntasks-per-node=1"]


@pytest.mark.parametrize(("priority", "nice"), [(0, "--nice=5000"), (40, "--nice=1000")])
def test_a_low_priority_is_nice(priority: int, nice: str) -> None:
    request = BatchRequest(LIMITS, priority=priority)
    assert nice in resource_options(request, SlurmRules())
    assert not any("nice" in each for each in resource_options(request, SlurmRules(nice_per_priority=0)))


@pytest.mark.parametrize("priority", [50, 51, 100])
def test_a_high_priority_gets_nobody_ahead(priority: int) -> None:
    options = resource_options(BatchRequest(LIMITS, priority=priority), SlurmRules())
    assert not any("nice" in each for each in options)


def test_a_class_is_a_partition_or_a_qos_of_jobs_that_name_none() -> None:
    rules = SlurmRules("main", qos="usual", classes={"urgent": ("fast", None), "idle": (None, "low")})
    urgent = resource_options(BatchRequest(LIMITS, priority_class="urgent"), rules)
    assert {"--partition=fast", "--qos=usual"} <= set(urgent)
    idle = resource_options(BatchRequest(LIMITS, priority_class="idle"), rules)
    assert {"--partition=main", "--qos=low"} <= set(idle)
    named = BatchRequest(LIMITS, options=BatchOptions(partition="mine"), priority_class="urgent")
    assert "--partition=mine" in resource_options(named, rules)
