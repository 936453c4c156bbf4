"""Why a device idles: what a job says about its steps, as one line that names the bottleneck.

A spell is what was seen of one attempt lately, evenly spaced.  Starting, reading the data set and
compiling are not held against it: it begins anew after them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import fmean
from typing import Final

from runner.core.policy.explain import format_span

LONG_PHASES: Final = frozenset({"init", "data", "compile", "drain"})
"""In these a device may idle for as long as they take."""

IDLE_SHARE: Final = 0.01
"""Below this the devices of an attempt that has never said anything are idle: of it nothing else is known."""

BOTTLENECK_SHARE: Final = 0.3
"""The share of step time from which a part of it is a bottleneck."""


@dataclass(frozen=True, slots=True)
class UtilizationSample:
    """One look at an attempt: monotonic seconds, what it was doing, utilisation and waiting as shares."""

    at: float
    phase: str | None = None
    util: float | None = None
    data_wait: float | None = None
    silent: bool = False  # it has never said anything of itself


@dataclass(frozen=True, slots=True)
class SampleWindow:
    """What was seen of an attempt over a while."""

    samples: tuple[UtilizationSample, ...] = ()

    def add(self, look: UtilizationSample, window_s: float) -> "SampleWindow":
        """Return the spell after another look; of those before, as many as make up the window."""
        if look.phase in LONG_PHASES or (look.phase is None and not look.silent):
            return SampleWindow()
        kept = (*(self.samples if self.silent == look.silent else ()), look)
        while len(kept) > 1 and kept[1].at <= look.at - window_s:
            kept = kept[1:]
        return SampleWindow(kept)

    @property
    def silent(self) -> bool:
        """Return whether it is of an attempt that has never said anything."""
        return bool(self.samples) and self.samples[-1].silent

    def covers(self, window_s: float) -> bool:
        return bool(self.samples) and self.samples[-1].at - self.samples[0].at >= window_s

    @property
    def util(self) -> float | None:
        """Return how busy its devices were, a share."""
        return _mean(each.util for each in self.samples)

    @property
    def data_wait(self) -> float | None:
        """Return the share of step time that it waited for batches."""
        return _mean(each.data_wait for each in self.samples)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known, None if that is less than half."""
    each = list(values)
    known = [value for value in each if value is not None]
    return fmean(known) if known and len(known) * 2 >= len(each) else None


@dataclass(frozen=True, slots=True)
class LoaderSetup:
    """How an attempt is set up, as far as it has said so, and where the time of its steps goes."""

    step_shares: Mapping[str, float] = field(default_factory=dict)  # shares of step time
    workers: int | None = None
    micro_batch: int | None = None
    compiled: bool | None = None


@dataclass(frozen=True, slots=True)
class IdleAlarm:
    """What is wrong, in one word and in one line."""

    kind: str
    text: str


def idle_alarm(
    spell: SampleWindow, setup: LoaderSetup, below: float, window_s: float, *, on_devices: bool
) -> IdleAlarm | None:
    """Return what is wrong with an attempt that uses less than ``below`` (a share) of what it has.

    Of an attempt without devices the processor is taken to be busy whenever it does not wait for data.
    """
    wait = spell.data_wait
    used = spell.util if on_devices else _not(wait)
    if used is None or used >= below or not spell.covers(window_s):
        return None
    if spell.silent and (not on_devices or used >= IDLE_SHARE):
        return None
    what, lately = "devices" if on_devices else "steps", format_span(timedelta(seconds=window_s))
    kind, why = ("mute", _WORDS["mute"]) if spell.silent else _diagnosis(wait, setup, on_devices=on_devices)
    below = min(below, IDLE_SHARE) if spell.silent else below
    return IdleAlarm(kind, f"{why} ({what} busy {used:.0%} of the last {lately}, alarm below {below:.0%})")


def _not(share: float | None) -> float | None:
    return None if share is None else 1.0 - share


def alarm_kind(text: str) -> str | None:
    """Return the kind of an alarm that was made earlier; None: it is about something else."""
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
