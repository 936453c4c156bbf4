"""What the two sides of the container wall agree on: paths, reports, exit codes, specs.

The only module of ``jobs`` that the host may import, so it needs pydantic and the
standard library alone.  Everything here is language-neutral on disk (JSON files and
directories under ``/job``), so a user's own program may speak it too; the written form
is ``docs/contract.md``.

What a container writes is a hint from an untrusted party: the reading side limits its
size, ignores keys that it does not know and lets it influence its own job only.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

CONTRACT_VERSION: Final = 1
"""Raised when a file below ``/job`` changes its meaning; both sides refuse a newer one."""

JOB_DIR: Final = Path("/job")
"""The run directory as the container sees it."""

MAX_REPORT_BYTES: Final = 64 * 1024
"""A status or result file larger than this is not read."""

MAX_MANIFEST_BYTES: Final = 1024 * 1024

BILLION: Final = 10**9
"""Most steps, sequences or batches that anybody means; a checkpoint name holds twelve digits."""

STDLIB: Final = "stdlib"
"""Instead of a directory of text: the library sources of the Python that runs the job."""

CHECKPOINT_NAME: Final = re.compile(r"step-(\d{8,12})")


class ExitCode(IntEnum):
    """Exit codes of a program that speaks the contract; others mean what the kernel says."""

    FINISHED = 0
    STOPPED = 75  # asked to stop, checkpoint saved (EX_TEMPFAIL)
    INVALID_SPEC = 78  # the spec is invalid or does not fit the saved state (EX_CONFIG)
    DO_NOT_RESTART = 93  # the program knows that another attempt is pointless
    NON_FINITE = 97  # loss or gradient not finite; the weights were not updated
    DEVICE_OUT_OF_MEMORY = 98  # marker written to result.json
    NO_VALID_CHECKPOINT = 99  # checkpoints exist and none is valid; never a silent fresh start


class Phase(StrEnum):
    """What the program is doing; each has its own idea of how long is too long."""

    INIT = "init"
    DATA = "data"
    COMPILE = "compile"
    TRAIN = "train"
    EVAL = "eval"
    SAVE = "save"
    DRAIN = "drain"


class Cause(StrEnum):
    """Why the program ended, in its own words (``result.json``)."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    INVALID_SPEC = "invalid_spec"
    NON_FINITE = "non_finite"
    DEVICE_OUT_OF_MEMORY = "device_out_of_memory"
    NO_VALID_CHECKPOINT = "no_valid_checkpoint"
    DISK_FULL = "disk_full"
    EXCEPTION = "exception"


# --- Paths ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Owns every file name below a run directory.

    ``root`` is ``/job`` inside the container and ``<state>/jobs/<id>`` on the host.
    The runner makes the directories; only the leaves ``attempts/N``, ``lineages/L``
    and ``home`` belong to the job's uid.
    """

    root: Path
    attempt: int
    lineage: int

    @property
    def attempt_dir(self) -> Path:
        return self.root / "attempts" / str(self.attempt)

    @property
    def spec(self) -> Path:
        return self.attempt_dir / "spec.json"

    @property
    def effective(self) -> Path:
        return self.attempt_dir / "effective.json"

    @property
    def status(self) -> Path:
        return self.attempt_dir / "status.json"

    @property
    def metrics(self) -> Path:
        return self.attempt_dir / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.attempt_dir / "result.json"

    @property
    def log(self) -> Path:
        return self.attempt_dir / "log.txt"

    @property
    def lineage_dir(self) -> Path:
        return self.root / "lineages" / str(self.lineage)

    @property
    def final_dir(self) -> Path:
        """The finished model, published like a checkpoint, before exit 0."""
        return self.lineage_dir / "final"

    @property
    def home(self) -> Path:
        return self.root / "home"


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


# --- The spec: runner -> program ----------------------------------------------------------------------


class Spec(BaseModel):
    """Base of everything the runner writes: frozen, and closed against unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CausalLm(Spec):
    """A decoder-only transformer over bytes, trained on every matching file below ``data``.

    One *item* is one token (a byte).  The effective batch is ``batch_size`` sequences of
    ``context`` tokens; it is the unit of a step, however small the micro-batch.
    """

    kind: Literal["causal_lm"] = "causal_lm"
    data: str = Field(description="Directory of text files, relative to the job file; or stdlib.")
    include: tuple[str, ...] = Field(("*.py", "*.txt", "*.md"), description="File name patterns to read.")
    steps: int = Field(200, ge=1, le=BILLION, description="Optimiser steps of the whole job.")
    batch_size: int = Field(16, ge=1, le=BILLION, description="Sequences in one step, the effective batch.")
    context: int = Field(64, ge=8, le=8192, description="Tokens in one sequence.")
    layers: int = Field(2, ge=1, le=128, description="Transformer blocks.")
    heads: int = Field(4, ge=1, le=128, description="Attention heads in each block.")
    width: int = Field(128, ge=8, le=16384, description="Model width; a multiple of heads.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of activations dropped in training.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak, reached after the warm-up.")
    warmup_steps: int = Field(20, ge=0, le=BILLION, description="Steps over which the learning rate rises.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW; on matrices alone.")
    grad_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    eval_every: int | None = Field(50, ge=1, le=BILLION, description="Steps between evaluations; null: none.")
    eval_batches: int = Field(4, ge=1, le=BILLION, description="Batches in one evaluation.")
    log_every: int = Field(10, ge=1, le=BILLION, description="Steps between lines of the log.")

    @model_validator(mode="after")
    def _width_divides(self) -> "CausalLm":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


Workload = Annotated[CausalLm, Field(discriminator=None)]
"""One of the built-in workloads; a union discriminated by ``kind`` as they grow."""


class Profile(Spec):
    """How a workload is run fast: optimisation settings, each reversible by itself."""

    name: str = "baseline"
    micro_batch: int | None = Field(None, ge=1, description="Sequences per forward pass; null: the batch.")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; null: the cpu quota.")
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compile: bool = Field(default=False, description="torch.compile, verified by its graph count.")
    deterministic: bool = Field(default=True, description="Same bits on the same machine, or an error.")
    fused_optimizer: bool = Field(default=False, description="One kernel for the whole update.")
    async_save: bool = Field(default=True, description="Write checkpoints off the training thread.")


class CheckpointPlan(Spec):
    """When to save and how many to keep; both clocks may run, whichever is due first."""

    every_steps: int | None = Field(None, ge=1)
    every_s: float | None = Field(None, gt=0)
    keep: int = Field(3, ge=2, description="The newest may be torn: never fewer than two.")


class AttemptSpec(Spec):
    """``attempts/N/spec.json``: all that one attempt is told, and all that it may depend on."""

    contract_version: Literal[1] = 1
    job_id: str
    revision: int = Field(1, ge=1)
    attempt: int = Field(ge=1)
    lineage: int = Field(ge=1)
    seed: int = Field(0, ge=0, lt=2**63)
    workload: CausalLm
    profile: Profile = Profile()
    checkpoint: CheckpointPlan = CheckpointPlan()
    resume_step: int | None = Field(None, ge=0, description="A given step; null: the newest valid one.")
    accelerator: Literal["cuda", "rocm", "cpu"] = "cpu"
    cpus: float = Field(1.0, gt=0, description="The cpu quota, for the thread count.")


# --- The reports: program -> runner -------------------------------------------------------------------


class Report(BaseModel):
    """Base of everything the program writes: frozen, and deaf to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Status(Report):
    """``status.json``: the heartbeat, replaced atomically."""

    phase: Phase
    time: float = Field(description="Unix time of writing, seconds.")
    step: int = Field(0, ge=0)
    total_steps: int | None = Field(None, ge=0)
    items_per_s: float | None = Field(None, ge=0, description="Tokens, windows, rows per second; recent.")
    data_wait: float | None = Field(None, ge=0, le=1, description="Share of step time spent waiting.")
    loss: float | None = None
    memory_bytes: int | None = Field(None, ge=0, description="Resident on a CPU, allocated on a device.")
    checkpoint_step: int | None = Field(None, ge=0, description="Newest published checkpoint.")
    resumed_from: int | None = Field(None, ge=0)


class Rejected(Report):
    """A checkpoint that was not used, and why."""

    name: str = Field(max_length=200)
    why: str = Field(max_length=1000)


class Result(Report):
    """``result.json``: written once, at the end."""

    cause: Cause
    step: int = Field(0, ge=0)
    message: str = Field("", max_length=4000)
    time: float = 0.0
    resumed_from: int | None = Field(None, ge=0)
    rejected: tuple[Rejected, ...] = Field((), max_length=20)
    weights_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    metrics: dict[str, float] = Field({}, max_length=100)


class Effective(Report):
    """``effective.json``: what really took effect, beside what was asked."""

    device: str
    device_name: str
    precision: str
    threads: int
    micro_batch: int
    accumulation: int
    compiled: bool
    compile_graphs: int = 0
    fused_optimizer: bool = False
    deterministic: bool = False
    async_save: bool = True
    parameters: int = 0
    train_items: int = 0
    versions: dict[str, str] = {}
    fallbacks: tuple[str, ...] = ()


class FileDigest(Report):
    """Size and content of one file of a checkpoint."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Report):
    """``manifest.json``, written last: a checkpoint without a valid one does not exist."""

    contract_version: int
    job_id: str
    step: int = Field(ge=0)
    lineage: int
    attempt: int
    revision: int
    parent_step: int | None = None
    created: float
    files: dict[str, FileDigest] = Field(min_length=1, max_length=1000)
    signatures: dict[str, str] = Field({}, max_length=20)
    environment: dict[str, str] = Field({}, max_length=50)
    state_sha256: str | None = None


MANIFEST: Final = "manifest.json"


# --- Checkpoints, as either side sees them -------------------------------------------------------------


class CheckpointInvalid(Exception):
    """A directory that looks like a checkpoint and is not one; the text says what is wrong."""


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of one checkpoint directory.

    Raises:
        CheckpointInvalid: it is missing, too large, no JSON, of a newer contract, or for another step.
    """
    try:
        raw = read_limited(directory / MANIFEST, MAX_MANIFEST_BYTES)
        manifest = Manifest.model_validate_json(raw)
    except FileNotFoundError as error:
        raise CheckpointInvalid("no manifest: the save did not finish") from error
    except OSError as error:
        raise CheckpointInvalid(f"manifest cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise CheckpointInvalid(f"manifest is not valid: {_first(error)}") from error
    if manifest.contract_version > CONTRACT_VERSION:
        raise CheckpointInvalid(f"written by a newer contract ({manifest.contract_version})")
    if directory.name.startswith("step-") and directory.name != checkpoint_name(manifest.step):
        raise CheckpointInvalid(f"manifest is for step {manifest.step}")
    return manifest


def verify(directory: Path) -> Manifest:
    """Return the manifest of one checkpoint after comparing every file with it.

    Raises:
        CheckpointInvalid: the manifest is bad, or a file is missing, of another size or of other content.
    """
    manifest = read_manifest(directory)
    for name, expected in manifest.files.items():
        _verify_file(directory, name, expected)
    return manifest


def checkpoints(lineage_dir: Path) -> Iterator[tuple[int, Path]]:
    """Yield (step, directory) of what looks like a checkpoint, newest first, unverified."""
    try:
        names = [entry.name for entry in lineage_dir.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return
    found = [
        (int(match[1]), lineage_dir / name) for name in names if (match := CHECKPOINT_NAME.fullmatch(name))
    ]
    yield from sorted(found, reverse=True)


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading that may lie in a hostile directory: no symbolic link, no pipe, no device."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(fd, "rb")


def file_sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify_file(directory: Path, name: str, expected: FileDigest) -> None:
    if "/" in name or name in {"", ".", ".."}:
        raise CheckpointInvalid(f"manifest names a file outside the checkpoint: {name!r}")
    path = directory / name
    try:
        size = path.lstat().st_size
        if size != expected.bytes:
            raise CheckpointInvalid(f"{name}: {size} bytes where the manifest says {expected.bytes}")
        digest = file_sha256(path)
    except OSError as error:
        raise CheckpointInvalid(f"{name}: {error.strerror}") from error
    if digest != expected.sha256:
        raise CheckpointInvalid(f"{name}: content differs from its sha256")


def read_limited(path: Path, limit: int) -> bytes:
    """Return the content of a small regular file.

    Raises:
        OSError: it is missing, no regular file, or larger than ``limit`` bytes.
    """
    with open_regular(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes")
    return raw


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def profiles_dir() -> Path:
    """Where the named profiles lie, one YAML file each."""
    return Path(__file__).parent / "profiles"


def dump(model: BaseModel) -> str:
    """Return the JSON text that both sides write: one object, indented, with a final newline."""
    return json.dumps(model.model_dump(mode="json"), indent=1) + "\n"
