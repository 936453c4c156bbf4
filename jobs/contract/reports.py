"""Reports of the program to the runner: heartbeat, result, effective settings, manifests.

The program is not trusted, so every text and every list has a size limit.
"""

from typing import Annotated

from pydantic import Field

from jobs.contract.base import Report
from jobs.contract.exit import Cause, Phase


class Status(Report):
    """``status.json``: the heartbeat, replaced atomically."""

    phase: Phase
    time: float = Field(description="Unix time of writing, seconds.")
    step: int | None = Field(0, ge=0, description="None: the log of a program tells no step.")
    total_steps: int | None = Field(None, ge=0)
    items_per_s: float | None = Field(None, ge=0, description="Tokens, windows, rows per second; recent.")
    step_s: float | None = Field(None, ge=0, description="Seconds of a step, without evaluations and saves.")
    items: int | None = Field(None, ge=0, description="Tokens, windows, rows that this attempt has done.")
    data_wait: float | None = Field(None, ge=0, le=1, description="Share of step time spent waiting.")
    parts: dict[str, float] = Field(
        {},
        max_length=20,
        description="Share of step time by part: data, transfer, forward, backward, optimizer.",
    )
    loss: float | None = None
    gradient_norm: float | None = Field(None, description="Before clipping, of the same step as the loss.")
    memory_bytes: int | None = Field(None, ge=0, description="Resident on a CPU, allocated on a device.")
    checkpoint_step: int | None = Field(None, ge=0, description="Newest published checkpoint.")
    save_every_s: float | None = Field(None, ge=0, description="Seconds between two saves, as settled.")
    save_stall_s: float | None = Field(None, ge=0, description="For how long a save holds training up.")
    saves_when_asked: bool | None = Field(None, description="Whether it saves when it is asked to stop.")
    eval_s: float | None = Field(None, ge=0, description="Seconds of the evaluation that runs, as expected.")
    eval_left_s: float | None = Field(None, ge=0, description="Seconds that it still takes.")
    resumed_from: int | None = Field(None, ge=0)
    metrics: dict[str, float] = Field({}, max_length=100, description="Further numbers, by their names.")


class Rejected(Report):
    """A checkpoint that was not used, with the reason."""

    name: str = Field(max_length=200)
    why: str = Field(max_length=1000)


class Result(Report):
    """``result.json``: written once, at the end."""

    cause: Cause
    step: int = Field(0, ge=0)
    message: str = Field("", max_length=4000)
    rank: int | None = Field(None, ge=0, description="Of several processes, the one that ended first.")
    processes: int | None = Field(None, ge=1, description="How many there were.")
    node: str | None = Field(None, max_length=255, description="Of that process, as the engine names it.")
    device: str | None = Field(None, max_length=100, description="The GPU of that process; None: none.")
    note: str = Field("", max_length=1000, description="What the launcher of several processes has seen.")
    phase: Phase | None = Field(None, description="What it was doing when it ended early.")
    time: float = 0.0
    resumed_from: int | None = Field(None, ge=0)
    rejected: tuple[Rejected, ...] = Field((), max_length=20)
    weights_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    metrics: dict[str, float] = Field({}, max_length=100)


class Switch(Report):
    """The state of one switch of the profile: requested, applied, verified."""

    requested: str = Field(max_length=200)
    applied: str | None = Field(None, max_length=200, description="None: this workload has no use for it.")
    verified: bool | None = Field(
        None, description="Whether the effect was seen; None: it cannot be seen here."
    )
    note: str = Field("", max_length=1000)


class Effective(Report):
    """``effective.json``: the settings in force, with the requested ones."""

    device: str
    device_name: str
    precision: str
    threads: int
    micro_batch: int | None = Field(None, ge=1, description="None: a program has not asked for it.")
    accumulation: int | None = Field(None, ge=1)
    processes: int = Field(1, ge=1, description="Of the attempt; each computes a part of every batch.")
    compile_graphs: int = 0
    parameters: int = 0
    train_items: int = 0
    steps_per_epoch: int | None = Field(None, ge=1)
    switches: dict[str, Switch] = Field({}, max_length=200)
    versions: dict[str, str] = Field({}, max_length=20)
    fallbacks: tuple[str, ...] = ()
    advice: tuple[Annotated[str, Field(max_length=1000)], ...] = Field((), max_length=20)


class OperatorTime(Report):
    """Time of one operator or kernel in a trace, without what it calls."""

    name: str = Field(max_length=300)
    calls: int = Field(ge=0)
    cpu_s: float = Field(ge=0)
    device_s: float = Field(ge=0)


class TraceSummary(Report):
    """``trace.json``: the operators of a trace that took the most time, the slowest first."""

    first_step: int = Field(ge=0)
    last_step: int = Field(ge=0)
    seconds: float = Field(ge=0)
    file: str = Field("", max_length=300, description="The whole trace, beside this file; empty: not kept.")
    operators: tuple[OperatorTime, ...] = Field((), max_length=50)


class FileDigest(Report):
    """Size and content of one file of a checkpoint."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(Report):
    """``manifest.json``, written last; a checkpoint without a valid manifest is invalid."""

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
    stopped_early: str = Field(
        "",
        max_length=1000,
        exclude_if=lambda value: not value,
        description="Of a finished model: why its training ended before the last step of its plan.",
    )
