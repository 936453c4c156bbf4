"""Readers of published traces of GPU clusters, as they are published; the files are not ours to ship.

- ``alibaba-gpu-2023``: ``openb_pod_list_*.csv`` of cluster-trace-gpu-v2023,
  https://github.com/alibaba/clusterdata (Q. Weng et al., Beware of Fragmentation, USENIX ATC 2023).
- ``philly``: ``cluster_job_log`` of https://github.com/msr-fiddle/philly-traces (M. Jeon et al., Analysis of
  Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC 2019).
- ``philly-sia``: the same jobs as a table, ``sia-simulator/traces/philly.csv`` of
  https://github.com/siasosp23/artifacts (S. Jayaram Subramanya et al., Sia, SOSP 2023).
- ``helios``: ``cluster_log.csv`` of https://github.com/S-Lab-System-Group/HeliosData (Q. Hu et al.,
  Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters, SC 2021).

None has time limits that users set, and none says what a save or a restart costs.  Jobs without GPUs, and
those that never ran, are left out.  A part of a device counts as a whole one.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from runner.base.readable import readable_duration
from runner.base.textfile import FileError, Position, Problem, quoted, read_lines
from runner.core.scheduler.simulator import Arrival
from runner.core.scheduler.snapshot import ResourceRequest

DAY_S: Final = 86400.0

SAVE_S, RESTART_S = 10.0, 20.0
"""Assumed costs of a preemption: the traces know none, and the two add up to 30 s."""

MAX_PROBLEMS: Final = 20


@dataclass(frozen=True, slots=True)
class PublishedTrace:
    """The jobs of a published trace, and how many of its lines were left out."""

    jobs: tuple[Arrival, ...]
    left_out: int
    assumptions: str


Row: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[Path], Iterable[tuple[int, Row]]]
Maker: TypeAlias = Callable[[int, Row], Arrival | None]


def read_published(path: Path, name: str) -> PublishedTrace:
    """Return the jobs of a file in a published format, by time of submission.

    Raises:
        FileError: the file is not in this format; with the first problems.
    """
    known = FORMATS[name]
    jobs: list[Arrival] = []
    left_out, problems = 0, list[Problem]()
    for number, row in known.rows(path):
        try:
            job = known.job(number, row)
        except (KeyError, ValueError, TypeError) as error:
            fact = (
                f"lacks {quoted(error.args[0])}"
                if isinstance(error, KeyError)
                else f"is not readable: {error}"
            )
            problems.append(Problem(Position(number, 1), "", fact))
            if len(problems) >= MAX_PROBLEMS:
                break
            continue
        if job is None:
            left_out += 1
        else:
            jobs.append(job)
    if problems or not jobs:
        raise FileError(path, problems or [Problem(None, "", f"holds no job with GPUs in the format {name}")])
    jobs.sort(key=lambda job: (job.submitted_s, job.job_id))
    return PublishedTrace(tuple(jobs), left_out, known.assumptions)


def last_days(jobs: Sequence[Arrival], days: float) -> tuple[Arrival, ...]:
    """Return the jobs that were submitted in the last days of a trace."""
    begins_s = jobs[-1].submitted_s - days * DAY_S
    return tuple(job for job in jobs if job.submitted_s >= begins_s)


def holdable(jobs: Iterable[Arrival], gpus: int) -> tuple[Arrival, ...]:
    """Return the jobs that a host with this many devices can hold."""
    return tuple(job for job in jobs if job.request.gpus <= gpus)


def scaled_to_load(jobs: Sequence[Arrival], devices: int, load: float) -> tuple[Arrival, ...]:
    """Return the jobs with submission times stretched so that they are a load on this many devices."""
    begins_s = jobs[0].submitted_s
    work_device_s = sum(job.request.gpus * job.duration_s for job in jobs)
    span_s = max(jobs[-1].submitted_s - begins_s, 1.0)
    factor = work_device_s / (devices * load) / span_s
    return tuple(replace(job, submitted_s=(job.submitted_s - begins_s) * factor) for job in jobs)


# --- the formats


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    reader = csv.DictReader(io.StringIO(read_lines(path, "trace"), newline=None))
    for row in reader:
        yield reader.line_num, row


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        jobs = json.loads(read_lines(path, "trace"))
    except ValueError as error:
        raise FileError(path, [Problem(None, "", f"is not JSON: {error}")]) from error
    if not isinstance(jobs, list):
        raise FileError(path, [Problem(None, "", "is not a list of jobs")])
    yield from enumerate(jobs, 1)


def _arrival(job_id: str, owner: str, gpus: int, submitted_s: float, duration_s: float) -> Arrival | None:
    if gpus <= 0 or duration_s <= 0:
        return None
    request = ResourceRequest(cpus=1.0, gpus=gpus)
    return Arrival(job_id, owner, request, submitted_s, duration_s, save_s=SAVE_S, restart_s=RESTART_S)


def _alibaba(number: int, row: Row) -> Arrival | None:
    started, ended = row["scheduled_time"], row["deletion_time"]
    if not started or not ended:
        return None
    return _arrival(
        row["name"] or f"line-{number}",
        "all",
        int(row["num_gpu"]),
        float(row["creation_time"]),
        float(ended) - float(started),
    )


def _philly(_number: int, row: Row) -> Arrival | None:
    attempts = [
        each for each in row["attempts"] if each["start_time"] and each["end_time"] and each["detail"]
    ]
    if not attempts or not row["submitted_time"]:
        return None
    gpus = max(sum(len(part["gpus"]) for part in each["detail"]) for each in attempts)
    ran_s = sum(_seconds(each["end_time"]) - _seconds(each["start_time"]) for each in attempts)
    return _arrival(row["jobid"], row["user"], gpus, _seconds(row["submitted_time"]), ran_s)


def _philly_sia(number: int, row: Row) -> Arrival | None:
    return _arrival(
        f"line-{number}",
        row["cluster"],
        int(row["num_gpus"]),
        _seconds(row["timestamp"]),
        float(row["duration"]),
    )


def _helios(_number: int, row: Row) -> Arrival | None:
    return _arrival(
        row["job_id"], row["user"], int(row["gpu_num"]), _seconds(row["submit_time"]), float(row["duration"])
    )


def _seconds(text: str) -> float:
    """Return a time as seconds; the traces write none with a zone, and differences alone matter."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class _Format:
    rows: Reader
    job: Maker
    assumptions: str


_COSTS: Final = (
    f"a save is assumed to take {readable_duration(SAVE_S)} and a restart {readable_duration(RESTART_S)}"
)

FORMATS: Final[Mapping[str, _Format]] = {
    "alibaba-gpu-2023": _Format(
        _csv_rows,
        _alibaba,
        f"one user, because the trace names none; parts of GPUs count as whole ones; {_COSTS}",
    ),
    "philly": _Format(_json_rows, _philly, f"a job's attempts are one piece of work; {_COSTS}"),
    "philly-sia": _Format(_csv_rows, _philly_sia, f"a virtual cluster is one user; {_COSTS}"),
    "helios": _Format(_csv_rows, _helios, _COSTS),
}
