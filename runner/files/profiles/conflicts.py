"""Conflicts of the switches of a profile with each other, with the accelerator and with the workload.

A *contradiction* (two switches that exclude each other) and an *impossible* switch (one that the
accelerator cannot have) are refused before anything runs. An *unused* switch is allowed and reported,
because one profile serves several workloads. If only the device lacks a feature, the trainer falls back and
records it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from jobs import contract
from runner.base.textfile import Position, quoted, shown
from runner.files.profiles.load import Accelerator, ProfileSetting

Test: TypeAlias = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two switches whose values exclude each other."""

    one: str
    is_one: Test
    other: str
    is_other: Test
    why: str


@dataclass(frozen=True, slots=True)
class SwitchConflict:
    """A conflict of a profile: the switch to change, the other side and the message."""

    switch: str
    other: str
    fact: str


def _on(value: object) -> bool:
    return value is True


def _some(value: Any) -> bool:  # noqa: ANN401 - a switch of any type
    return isinstance(value, int) and value > 0


def _one_of(*words: str) -> Test:
    return lambda value: value in words


_BY_THE_CLOCK: Final = "kernels chosen by timing can differ after a resume, and then the results differ"
_EXACT: Final = "fp32 keeps 24 bits of precision, and TF32 rounds to 11"
_NOTHING_COMPILED: Final = "nothing is compiled"

_MADE_ELSEWHERE: Final = "batches on the device are made there and not by loader processes"
_NOT_PINNED: Final = "a copy is asynchronous only from pinned memory"
_TUNED: Final = _one_of("max-autotune", "max-autotune-no-cudagraphs")

CONTRADICTIONS: Final = (
    Contradiction("cudnn_benchmark", _on, "deterministic", _on, _BY_THE_CLOCK),
    Contradiction("compile", _TUNED, "deterministic", _on, _BY_THE_CLOCK),
    Contradiction("tf32_matmul", _on, "precision", _one_of("fp32"), _EXACT),
    Contradiction("tf32_cudnn", _on, "precision", _one_of("fp32"), _EXACT),
    Contradiction("loader_workers", _some, "placement", _one_of("device"), _MADE_ELSEWHERE),
    Contradiction("non_blocking", _on, "placement", _one_of("host"), _NOT_PINNED),
    Contradiction("compile_fullgraph", _on, "compile", _one_of("off"), _NOTHING_COMPILED),
    Contradiction("compile_dynamic", _on, "compile", _one_of("off"), _NOTHING_COMPILED),
)

IMPOSSIBLE: Final[tuple[tuple[str, Test, Accelerator, str], ...]] = (
    (
        "memory_fraction",
        lambda value: value is not None,
        "cpu",
        "it has no device memory; resources.memory is the limit",
    ),
)
"""Switch, value, accelerator and reason, for switches without a fallback."""


def find_switch_conflicts(
    said: Mapping[str, ProfileSetting], accelerator: Accelerator, because: str = ""
) -> Iterator[SwitchConflict]:
    """Yield the conflicts of the switches of a profile on an accelerator.

    ``because`` is appended to the name of the accelerator: the position that selects it.
    """
    for rule in CONTRADICTIONS:
        if rule.is_one(said[rule.one].value) and rule.is_other(said[rule.other].value):
            blamed, witness = rule.one, rule.other
            if _particular(said[witness]) > _particular(said[blamed]):
                blamed, witness = witness, blamed
            against = f"{witness}: {shown(said[witness].value)}{said[witness].whose}"
            fact = f"{_value(said[blamed])} contradicts {against}: {rule.why}; change one of them"
            yield SwitchConflict(blamed, witness, fact)
    for switch, test, where, why in IMPOSSIBLE:
        if where == accelerator and test(said[switch].value):
            fact = (
                f"{_value(said[switch])} is not possible on the accelerator {quoted(where)}{because}: {why}"
            )
            yield SwitchConflict(switch, "accelerator", fact)


def _value(said: ProfileSetting) -> str:
    """Return the value to blame, with its place where the complaint itself has none."""
    return f"{shown(said.value)}{said.whose if said.profile else ''}"


def _particular(said: ProfileSetting) -> tuple[int, Position]:
    """Return a sort key: of two conflicting switches, the one with the larger key is to be changed."""
    return said.rank, said.at or Position(0, 0)


# --- Settings without effect --------------------------------------------------------------------------

USED_BY: Final[Mapping[str, frozenset[str]]] = {
    switch: frozenset(contract.kind_of(plan) for plan in contract.WORKLOADS if switch in plan.switches)
    for switch in sorted(frozenset[str]().union(*(plan.switches for plan in contract.WORKLOADS)))
}
"""Switches that only some workloads use; every built-in workload uses the others."""

ENVIRONMENT: Final = frozenset({"threads", "allocator", "launch_blocking", "deterministic", "compile_cache"})
"""Switches that reach a user's own program, as environment variables."""

OWN_PROGRAM: Final = "a program of your own applies it itself, with gpu_job_runner.attach.apply_profile()"

_OF_A_DEVICE: Final = frozenset(
    ("tf32_cudnn", "cudnn_benchmark", "allocator", "launch_blocking", "memory_cleanup_every")
)
_OF_COMPILATION: Final = frozenset({"compile_dynamic", "compile_fullgraph", "compile_cache"})
_OF_LOADERS: Final = frozenset({"loader_prefetch", "loader_persistent"})
_OF_STREAMING: Final = frozenset({"stream_buffer", "stream_buffer_memory"})


def find_unused_switches(profile: contract.Profile, kind: str, accelerator: Accelerator) -> Mapping[str, str]:
    """Return the switches that will have no effect, each with the reason."""
    return {switch: why for switch in contract.SWITCHES if (why := _idle(switch, profile, kind, accelerator))}


def find_oversized(
    profile: contract.Profile, plan: contract.TrainingPlan, asked: Collection[str]
) -> Iterator[str]:
    """Yield a line for each switch of the job file that exceeds its training, and is cut to it."""
    micro = profile.micro_batch
    if "micro_batch" in asked and isinstance(micro, int) and micro > plan.batch_size:
        yield (
            f"profile.micro_batch: {micro} rows are more than a step has (workload.batch_size: "
            f"{plan.batch_size}), and {plan.batch_size} are used"
        )
    if "trace" in asked and profile.trace is not None and plan.known_steps is not None:
        (first, last), end = profile.trace.steps, f"(workload.steps: {plan.known_steps})"
        if first >= plan.known_steps:
            yield f"profile.trace: records nothing: step {first} is not reached {end}"
        elif last > plan.known_steps:
            yield f"profile.trace: is not kept: step {last} is not reached {end}"


def _idle(switch: str, profile: contract.Profile, kind: str, accelerator: Accelerator) -> str | None:
    if kind == "program":
        return None if switch in ENVIRONMENT else OWN_PROGRAM
    if kind not in USED_BY.get(switch, {kind}):
        return f"{kind} has no use for it"
    if accelerator == "cpu" and switch in _OF_A_DEVICE:
        return "the accelerator is the cpu"
    if switch in _OF_COMPILATION and profile.compile == "off":
        return "compile is off"
    if switch in _OF_LOADERS and profile.loader_workers == 0:
        return "loader_workers is 0"
    if switch == "memory_log_every" and profile.memory_log != "interval":
        return f"memory_log is {profile.memory_log}"
    if switch in _OF_STREAMING and not profile.streaming:
        return "streaming is off"
    if switch == "stream_buffer_memory" and profile.stream_buffer != "auto":
        return f"stream_buffer is {profile.stream_buffer}"
    return None
