"""The optimisation settings of a workload: switches that can be set independently.

A *switch* is one field of ``Profile``.  For each switch the program reports the requested value, the
applied value, and whether the applied value was verified (``Effective.switches``).
"""

from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from jobs.contract.base import Spec


def _compile_mode(value: object) -> object:
    """Accept the YAML words ``off``, ``false`` and ``true`` for the modes they mean."""
    return {False: "off", True: "default"}.get(value, value) if isinstance(value, bool) else value


_Modes = Literal["off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]

CompileMode = Annotated[_Modes, BeforeValidator(_compile_mode, json_schema_input_type=_Modes | bool)]


Count = Annotated[int, Field(ge=1)]
"""A count of at least one; a constraint on a union would also be applied to its string values."""


MAX_TRACED: Final = 100
"""Steps in one trace at most: every operator and every kernel of a step is an event in it."""


class Trace(Spec):
    """The part of a training that ``torch.profiler`` records."""

    steps: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]] = Field(
        description="From the first step to the second: [100, 110] are the ten steps after step 100."
    )

    @model_validator(mode="after")
    def _is_a_short_range(self) -> Self:
        first, last = self.steps
        if not first < last <= first + MAX_TRACED:
            fact = f"the second step follows the first by 1 to {MAX_TRACED}"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("steps",)})
        return self

    def __str__(self) -> str:
        first, last = self.steps
        return f"{first} to {last}"


class Profile(Spec):
    """Optimisation settings; the defaults are plain, without any trick and without any known waste."""

    name: str = "compat"

    # Numbers
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "fp32", description="Arithmetic of the forward pass; auto: the best that the device has natively."
    )
    tf32_matmul: bool = Field(default=False, description="Round the inputs of fp32 matrix products to TF32.")
    tf32_cudnn: bool = Field(
        default=False, description="The same in cuDNN: convolutions and recurrent layers."
    )
    deterministic: bool = Field(default=True, description="Same bits on the same machine, or an error.")
    cudnn_benchmark: bool = Field(default=False, description="Let cuDNN choose its kernels by trying them.")

    # Kernels
    compile: CompileMode = Field(
        "off", description="torch.compile and its mode, verified by its graph count."
    )
    compile_dynamic: bool | None = Field(
        default=False, description="Graphs for shapes that vary; null: when one has varied."
    )
    compile_fullgraph: bool = Field(default=False, description="A graph break is an error.")
    compile_cache: bool = Field(default=True, description="Keep compiled code between attempts of a job.")
    optimizer: Literal["loop", "foreach", "fused"] = Field(
        "foreach", description="The update: one tensor at a time, in groups, or in one kernel."
    )
    attention: Literal["fused", "cached_mask", "rebuilt_mask"] = Field(
        "fused",
        description="Fused causal attention, or a mask: kept, or built in every forward pass.",
    )
    activation_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass instead of keeping them."
    )

    # Batches
    micro_batch: Count | Literal["auto"] | None = Field(
        None, description="Rows per forward pass; null: the batch; auto: as many as fit on the device."
    )
    eval_batch: int | None = Field(None, ge=1, description="Rows per evaluation pass; null: as in training.")
    loader_workers: int = Field(
        0, ge=0, le=256, description="Processes that make batches; 0: the trainer itself."
    )
    loader_prefetch: int = Field(2, ge=1, le=1024, description="Batches that each of them makes ahead.")
    loader_persistent: bool = Field(default=True, description="Keep the evaluation's loader processes too.")
    placement: Literal["host", "pinned", "device"] = Field(
        "host", description="Where batches wait: in memory, in pinned memory, or all of them on the device."
    )
    non_blocking: bool = Field(default=False, description="Copy to the device while the CPU goes on.")
    transfer: Literal["always", "needed"] = Field(
        "needed", description="Copy every batch, or only one that lies elsewhere."
    )
    clone_batches: bool = Field(default=False, description="Copy every batch once more before it is used.")

    # Avoiding repeated work
    conversion: Literal["each_use", "once"] = Field(
        "once", description="Turn records into tensors whenever they are used, or once."
    )
    shared_targets: bool = Field(
        default=True, description="Compute what all variants of a window have in common only once."
    )
    streaming: bool = Field(
        default=True,
        exclude_if=lambda value: value is True,  # so that earlier images read the spec
        description="Read recordings when they are needed, or all of them before the first step.",
    )
    stream_buffer: Count | Literal["auto"] = Field(
        "auto",
        description="Sequences kept in memory while streaming; auto: as many as the memory below holds.",
    )
    stream_buffer_memory: int = Field(
        256 * 1024**2, ge=1024**2, description="Bytes that an automatic stream buffer may take."
    )
    graph_cache: Literal["off", "memory", "disk"] = Field(
        "memory", description="Keep graphs, keyed by their content; disk: for the next attempt too."
    )
    encode_once: bool = Field(
        default=True, description="Encode an item once, however often it occurs in a batch."
    )
    last_position_only: bool = Field(default=True, description="Compute the head where its output is used.")

    # Checks and diagnostics
    host_checks_every: int = Field(
        1, ge=1, description="Steps between two times that the CPU waits for loss and gradient norm."
    )
    anomaly_detection: bool = Field(
        default=False, description="torch.autograd.detect_anomaly: for debugging."
    )
    memory_log: Literal["off", "interval", "epoch"] = Field(
        "off", description="When to log memory allocated, reserved and at its peak."
    )
    memory_log_every: int = Field(100, ge=1, description="Steps between two such lines.")
    memory_cleanup_every: int | None = Field(
        None, ge=1, description="Steps between two times that cached memory is given back; null: never."
    )
    trace: Trace | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that earlier images read the spec
        description="Steps that torch.profiler records; null: none.",
    )
    dry_run: bool = Field(default=True, description="Rehearse two steps before the first, and undo them.")

    # Process
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; null: the cpu quota.")
    allocator: Literal["default", "expandable_segments"] = Field(
        "default", description="How the device's memory is managed; expandable segments fragment less."
    )
    launch_blocking: bool = Field(default=False, description="CUDA_LAUNCH_BLOCKING: for debugging.")
    memory_fraction: float | None = Field(
        None, gt=0, le=1, description="Share of the device's memory that this process may take."
    )
    async_save: bool = Field(default=True, description="Write checkpoints off the training thread.")

    environment: dict[str, str] = Field(
        {},
        max_length=200,
        exclude_if=lambda value: not value,  # so that earlier images read the spec
        description="Environment variables, for switches that a library reads there; the job's own win.",
    )


SWITCHES: Final = tuple(name for name in Profile.model_fields if name not in {"name", "environment"})
"""The fields of a profile that the program reports one by one, which are all except these two."""


def most_workers(cpus: float) -> int:
    """Return the number of loader processes that a job's cores can run at the same time; at least one."""
    return max(1, int(cpus))


def excess_workers(profile: Profile, cpus: float) -> str | None:
    """Return a line about more loader processes than cores, None if there are not more."""
    if profile.loader_workers <= most_workers(cpus):
        return None
    cores = "1 core" if cpus == 1 else f"{cpus:g} cores"
    return (
        f"profile.loader_workers: {profile.loader_workers} processes and the trainer share {cores} and take"
        " turns; raise resources.cpus or lower it"
    )


def thread_count(profile: Profile, cpus: float, shares: int = 1) -> int:
    """Return the number of CPU threads of one process, which has one of so many shares of the quota.

    The host and the program must use the same number, because it changes the rounding.  Loader processes
    get an equal part of the quota, since all of them compute at the same time.
    """
    return profile.threads or max(1, int(cpus) // (profile.loader_workers + 1) // shares)
