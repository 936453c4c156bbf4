"""Figures as text, in the format that Prometheus and its kin read (text format 0.0.4).

Written out here: what is needed of it is a page long, and the tests hold it against the parser of the
library by the format's own authors.  https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of figures."""

    name: str
    kind: Literal["gauge", "counter"]
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure; ``labels`` are the values of the metric's own."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


METRICS: Final = (
    Metric("runner_info", "gauge", "1, with the version and the executor", ("version", "executor")),
    Metric("runner_started_seconds", "gauge", "when the daemon started, Unix time"),
    Metric("runner_devices", "gauge", "devices by state", ("state",)),
    Metric("runner_device_utilisation_ratio", "gauge", "share of the last ten seconds in which a kernel ran",
           ("device", "name")),
    Metric("runner_device_memory_used_ratio", "gauge", "share of its memory that is in use",
           ("device", "name")),
    Metric("runner_device_temperature_celsius", "gauge", "temperature, where it is known",
           ("device", "name")),
    Metric("runner_device_power_watts", "gauge", "power draw, where it is known", ("device", "name")),
    Metric("runner_device_state", "gauge", "1 for the state that the device is in, 0 for the others",
           ("device", "name", "state")),
    Metric("runner_cpus", "gauge", "cpus that there are, and those that are lent", ("part",)),
    Metric("runner_memory_bytes", "gauge", "memory that there is, and what is lent of it", ("part",)),
    Metric("runner_jobs", "gauge", "jobs that have not ended, by state", ("state",)),
    Metric("runner_queue_jobs", "gauge", "waiting jobs by priority class", ("priority_class",)),
    Metric("runner_queue_oldest_seconds", "gauge", "for how long the oldest waiting job has waited"),
    Metric("runner_alarms", "gauge", "running jobs with a utilisation alarm"),
    Metric("runner_attempts_ended_total", "counter", "attempts that ended since the daemon started, by cause",
           ("cause",)),
    Metric("runner_decisions_total", "counter",
           "decisions of policies since the daemon started; rules of people's own are `other`",
           ("moment", "rule")),
    Metric("runner_loop_lag_seconds", "gauge", "how long the loop took to answer when it was asked last"),
    Metric("runner_loop_lag_longest_seconds", "gauge", "the longest of its last 60 answers"),
    Metric("runner_store_bytes", "gauge", "size of the store by file", ("file",)),
)  # fmt: skip


def text(samples: Iterable[Sample], metrics: Iterable[Metric] = METRICS) -> str:
    """Return samples under the heads of their metrics; a metric without samples is left out.

    Raises:
        KeyError: a sample of a metric that does not exist.
    """
    known = {metric.name: metric for metric in metrics}
    lines: dict[str, list[str]] = {name: [] for name in known}
    for sample in samples:
        lines[sample.metric].append(_line(known[sample.metric], sample))
    heads: Mapping[str, list[str]] = {
        name: [f"# HELP {name} {_help(metric.meaning)}", f"# TYPE {name} {metric.kind}"]
        for name, metric in known.items()
    }
    return "".join(f"{line}\n" for name, own in lines.items() if own for line in (*heads[name], *own))


def _line(metric: Metric, sample: Sample) -> str:
    pairs = ",".join(
        f'{name}="{_value(value)}"' for name, value in zip(metric.labels, sample.labels, strict=True)
    )
    labels = f"{{{pairs}}}" if pairs else ""
    return f"{metric.name}{labels} {sample.value!r}"


def _help(meaning: str) -> str:
    return meaning.replace("\\", r"\\").replace("\n", r"\n")


def _value(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
