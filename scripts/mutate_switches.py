"""Turns each switch of a profile into a no-op, and fails if the test that is named for it stays green.

    python -m scripts.mutate_switches [SWITCH ...]

The code that acts on a switch then reads its plain value, whatever the profile says; the reports still read
what was asked for.  So a test that only looks at a report, or that a switch changes no bits, does not count
as a proof that the switch is there.  This module is also the plugin of pytest that does it, in the process of
the test: nothing in the working tree is changed.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from jobs.contract import SWITCHES, Profile

ROOT: Final = Path(__file__).parent.parent
VARIABLE: Final = "MUTATED_SWITCH"

ACTING: Final = (
    "jobs.training.",
    "jobs.workloads.",
    "jobs.checkpoint.",
    "jobs.data.",
    "jobs.contract.profile",
    "runner.files.profiles.environment",
)
"""Modules that act on switches."""

REPORTING: Final = "jobs.training.switches"

PLAIN: Final[Mapping[str, Any]] = {
    "deterministic": False,
    "compile_cache": False,
    "attention": "rebuilt_mask",
    "loader_persistent": False,
    "transfer": "always",
    "conversion": "each_use",
    "shared_targets": False,
    "graph_cache": "off",
    "encode_once": False,
    "last_position_only": False,
    "dry_run": False,
    "async_save": False,
}
"""Values of a switch that is not there, where they are not the defaults of the contract."""

_TRAINING: Final = "tests/unit/jobs/training"
_WORKLOADS: Final = "tests/unit/jobs/workloads"
_PRESENCE: Final = f"{_TRAINING}/test_presence.py"
_DEVICE: Final = f"{_TRAINING}/test_device.py"
_FEED: Final = f"{_TRAINING}/test_feed.py"
_MEMORY: Final = f"{_TRAINING}/test_memory.py"
_COMPILED: Final = f"{_TRAINING}/test_compilation.py"
_ENVIRONMENT: Final = "tests/unit/runner/files/profiles/test_environment.py"

TESTS: Final[Mapping[str, str]] = {
    "precision": f"{_TRAINING}/test_step.py::test_bf16_runs_under_autocast_and_keeps_the_weights_in_fp32",
    "tf32_matmul": f"{_DEVICE}::test_tf32_is_only_where_there_is_hardware_for_it",
    "tf32_cudnn": f"{_DEVICE}::test_tf32_is_only_where_there_is_hardware_for_it",
    "deterministic": f"{_ENVIRONMENT}"
    "::test_a_deterministic_profile_fixes_the_workspace_of_the_matrix_products",
    "cudnn_benchmark": f"{_DEVICE}::test_cudnn_benchmarks_only_where_there_is_cudnn",
    "compile": f"{_COMPILED}::test_mode_shapes_and_whole_graph_are_those_of_the_profile",
    "compile_dynamic": f"{_PRESENCE}::test_compile_dynamic_is_what_the_compiler_is_told",
    "compile_fullgraph": f"{_COMPILED}::test_mode_shapes_and_whole_graph_are_those_of_the_profile",
    "compile_cache": f"{_ENVIRONMENT}"
    "::test_compiled_code_lies_in_the_jobs_own_cache_or_dies_with_the_attempt",
    "optimizer": f"{_PRESENCE}::test_the_optimizer_is_the_implementation_that_is_asked_for",
    "attention": f"{_WORKLOADS}/test_causal_lm.py::test_a_mask_is_built_once_or_every_time_or_never",
    "activation_checkpointing": f"{_PRESENCE}::test_activation_checkpointing_computes_each_block_again",
    "micro_batch": f"{_PRESENCE}::test_micro_batch_is_the_rows_of_a_forward_pass",
    "eval_batch": f"{_PRESENCE}::test_eval_batch_is_the_rows_of_a_pass_of_an_evaluation",
    "loader_workers": f"{_PRESENCE}::test_loader_workers_are_processes_of_the_loader",
    "loader_prefetch": f"{_PRESENCE}::test_loader_prefetch_is_how_far_each_of_them_is_ahead",
    "loader_persistent": f"{_PRESENCE}::test_loader_persistent_keeps_the_loader_of_evaluations",
    "placement": f"{_FEED}::test_a_data_set_that_fits_moves_to_the_device",
    "non_blocking": f"{_FEED}::test_a_copy_to_a_card_is_waited_for_only_if_it_should_be",
    "transfer": f"{_FEED}::test_a_batch_that_is_there_already_is_moved_only_by_always",
    "clone_batches": f"{_FEED}::test_a_batch_is_copied_once_more_where_that_is_asked_for",
    "conversion": f"{_WORKLOADS}/test_pair_classifier.py::test_a_step_leaves_its_batch_as_it_was",
    "shared_targets": f"{_WORKLOADS}/imu_stream/body/test_workload.py"
    "::test_the_waste_of_a_profile_is_counted",
    "streaming": f"{_WORKLOADS}/imu_stream/body/test_workload.py"
    "::test_a_source_that_does_not_stream_has_converted_everything_before_the_first_step",
    "stream_buffer": f"{_WORKLOADS}/imu_stream/test_windows.py::test_no_more_is_kept_than_the_buffer_holds",
    "stream_buffer_memory": f"{_WORKLOADS}/imu_stream/test_workload.py"
    "::test_an_automatic_buffer_is_measured_and_shared_between_processes",
    "graph_cache": f"{_WORKLOADS}/graph_forecast/test_workload.py::test_the_report_counts_hits_and_rebuilds",
    "encode_once": f"{_WORKLOADS}/test_pair_classifier.py::test_the_switches_say_what_they_saw",
    "last_position_only": f"{_WORKLOADS}/pair_sequence/test_sequences.py"
    "::test_the_positions_of_the_vocabulary_are_counted",
    "host_checks_every": f"{_PRESENCE}::test_host_checks_every_is_how_often_the_cpu_reads_the_loss",
    "anomaly_detection": f"{_PRESENCE}::test_anomaly_detection_is_on_in_a_step",
    "memory_log": f"{_MEMORY}::test_a_training_logs_its_memory",
    "memory_log_every": f"{_MEMORY}::test_memory_is_logged_at_an_interval_per_epoch_or_never",
    "memory_cleanup_every": f"{_MEMORY}::test_cached_memory_of_a_device_is_given_back_at_its_interval",
    "trace": f"{_TRAINING}/test_trace.py::test_the_trace_and_its_table_are_kept",
    "dry_run": f"{_PRESENCE}::test_dry_run_rehearses_before_the_first_step",
    "threads": f"{_ENVIRONMENT}::test_threads_are_the_quota_shared_with_the_loader_processes",
    "allocator": f"{_ENVIRONMENT}::test_exactly_one_variable_steers_the_allocator",
    "launch_blocking": f"{_ENVIRONMENT}::test_launches_block_where_that_was_asked_for",
    "memory_fraction": f"{_DEVICE}::test_a_job_that_shares_a_device_keeps_to_its_part",
    "async_save": f"{_PRESENCE}::test_async_save_goes_on_while_a_checkpoint_is_written",
}
"""The test that fails without a switch."""


def plain_value(switch: str) -> object:
    """Return the value that code reads of a switch that is not there."""
    return PLAIN.get(switch, Profile.model_fields[switch].default)


def mutated(read: Callable[[Any, str], Any], switch: str) -> Callable[[Any, str], Any]:
    """Return a way of reading a profile in which one switch has its plain value for the code that acts."""
    plain = plain_value(switch)

    def read_mutated(profile: Any, name: str) -> Any:
        if name == switch:
            module = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001  (who reads it)
            if module.startswith(ACTING) and module != REPORTING:
                return plain
        return read(profile, name)

    return read_mutated


def pytest_configure() -> None:
    """Mutate the switch of the environment, as a plugin of pytest."""
    if switch := os.environ.get(VARIABLE):
        Profile.__getattribute__ = mutated(Profile.__getattribute__, switch)  # type: ignore[method-assign]


def are_green(tests: Iterable[str], switch: str = "") -> bool:
    """Return True if tests are green although a switch is a no-op; without a switch, as they are.

    Raises:
        SystemExit: A test cannot be run, so it tells nothing.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "scripts.mutate_switches", *tests],
        cwd=ROOT,
        env={**os.environ, VARIABLE: switch},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1} or (done.returncode and not switch):  # 1: a test has failed
        sys.exit(
            f"{switch or 'as it is'}: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr}"
        )
    return done.returncode == 0


def main(asked: Iterable[str]) -> int:
    """Mutate the switches, print what came of each, and return the number of those that survive."""
    asked, survivors = tuple(asked), 0
    are_green(dict.fromkeys(TESTS[switch] for switch in asked))  # one that is red anyway would prove nothing
    for switch in asked:
        test = TESTS[switch]
        survived = are_green([test], switch)
        survivors += survived
        print(f"{'SURVIVES' if survived else 'killed':<9}{switch:<22}{test}", flush=True)
    print(f"{survivors} survivor(s)")
    return survivors


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:] or SWITCHES), 1))
