"""Bottlenecks: why the devices of an attempt idle, as one line.

A window has the recent samples of one attempt at even intervals.  It begins anew after phases in which
devices may idle: start, reading of the data set and compilation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from runner.base.readable import readable_duration

LONG_PHASES: Final = frozenset({"init", "data", "compile", "drain"})
"""Phases in which a device may idle."""

IDLE_SHARE: Final = 0.01
"""Utilization below which the devices of an attempt without reports are idle."""

BOTTLENECK_SHARE: Final = 0.3
"""The share of step time from which a part of a step is the bottleneck."""


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """One sample of an attempt: monotonic seconds, phase, and utilization and data wait as shares."""

    at: float
    phase: str | None = None
    util: float | None = None
    data_wait: float | None = None
    silent: bool = False  # it has never reported anything


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """The recent samples of an attempt."""

    samples: tuple[UtilizationSample, ...] = ()

    def add(self, sample: UtilizationSample, window_s: float) -> "SampleWindow":
        """Return the window with another sample, without those that are older than the window."""
        if sample.phase in LONG_PHASES or (sample.phase is None and not sample.silent):
            return SampleWindow()
        kept = (*(self.samples if self.silent == sample.silent else ()), sample)
        while len(kept) > 1 and kept[1].at <= sample.at - window_s:
            kept = kept[1:]
        return SampleWindow(kept)

    @property
    def silent(self) -> bool:
        """Return True if the attempt has never reported anything."""
        return bool(self.samples) and self.samples[-1].silent

    def covers(self, window_s: float) -> bool:
        return bool(self.samples) and self.samples[-1].at - self.samples[0].at >= window_s

    @property
    def util(self) -> float | None:
        """The mean utilization of its devices, a share."""
        return _mean(each.util for each in self.samples)

    @property
    def data_wait(self) -> float | None:
        """The mean share of step time in which it waited for batches."""
        return _mean(each.data_wait for each in self.samples)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if less than half of them are known."""
    each = list(values)
    known = [value for value in each if value is not None]
    return fmean(known) if known and len(known) * 2 >= len(each) else None


@dataclass(frozen=True, slots=True)
class LoaderSetup:
    """The reported settings of an attempt, and the parts of its step time."""

    step_shares: Mapping[str, float] = field(default_factory=dict)  # shares of step time
    workers: int | None = None
    micro_batch: int | None = None
    compiled: bool | None = None


@dataclass(frozen=True, slots=True)
class IdleAlarm:
    """The kind of a problem and a line about it."""

    kind: str
    text: str


def idle_alarm(
    window: SampleWindow, setup: LoaderSetup, below: float, window_s: float, *, on_devices: bool
) -> IdleAlarm | None:
    """Return the alarm about an attempt whose utilization is below a share; None: there is none.

    The CPUs of an attempt without devices count as busy whenever it does not wait for data.
    """
    wait = window.data_wait
    used = window.util if on_devices else _not(wait)
    if used is None or used >= below or not window.covers(window_s):
        return None
    if window.silent and (not on_devices or used >= IDLE_SHARE):
        return None
    what, lately = "devices" if on_devices else "steps", readable_duration(window_s)
    kind, why = ("mute", _WORDS["mute"]) if window.silent else _diagnosis(wait, setup, on_devices=on_devices)
    below = min(below, IDLE_SHARE) if window.silent else below
    return IdleAlarm(kind, f"{why} ({what} busy {used:.0%} of the last {lately}, alarm below {below:.0%})")


def _not(share: float | None) -> float | None:
    return None if share is None else 1.0 - share


def alarm_kind(text: str) -> str | None:
    """Return the kind of an earlier alarm from its text; None: the text is no such alarm."""
    return next((kind for kind, words in _WORDS.items() if words in text), None)


def _diagnosis(wait: float | None, setup: LoaderSetup, *, on_devices: bool) -> tuple[str, str]:
    kind, more = _bottleneck(wait, setup, on_devices=on_devices)
    return kind, f"{_WORDS[kind]}{more}"


def _bottleneck(wait: float | None, setup: LoaderSetup, *, on_devices: bool) -> tuple[str, str]:
    if wait is not None and (wait >= BOTTLENECK_SHARE or not on_devices):
        return "input", f": {wait:.0%} of step time waits for data{_workers(setup)}"
    parts = {
        name: share
        for name, share in setup.step_shares.items()
        if name in _PARTS and share >= BOTTLENECK_SHARE
    }
    if parts:
        name = max(parts, key=lambda each: parts[each])
        return name, f": {parts[name]:.0%} of step time {_PARTS[name]}"
    return ("unknown", "") if wait is None else ("host", _shape(setup))


_WORDS: Final = {
    "input": "input-bound",
    "transfer": "transfer-bound",
    "optimizer": "optimizer-bound",
    "host": "host-bound: data are there, and kernels too short or too few",
    "mute": "it says nothing of itself, and its devices idle",
    "unknown": "it does not say where the time of its steps goes",
}

_PARTS: Final = {"transfer": "copies batches to the device", "optimizer": "updates weights"}


def _workers(setup: LoaderSetup) -> str:
    return "" if setup.workers is None else f"; loader workers {setup.workers}"


def _shape(setup: LoaderSetup) -> str:
    batch = "" if setup.micro_batch is None else f"; micro-batch {setup.micro_batch}"
    return f"{batch}; not compiled" if setup.compiled is False else batch
