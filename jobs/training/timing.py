"""Stopwatches that measure the time of a step by part.

On a CPU, a part takes as long as its statements.  On a GPU, the statements only queue work, so the
parts are measured between CUDA events, and nobody waits for an event: a part that the device has not
completed yet counts the next time.  The part ``data`` is work of the CPU and is always timed by the CPU.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch

Part = Literal["data", "transfer", "forward", "backward", "optimizer"]


class HostStopwatch:
    """Times statements with the CPU's clock."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def within(self, part: Part) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - began

    def take(self) -> Mapping[str, float]:
        seconds, self._seconds = self._seconds, defaultdict(float)
        return seconds


class DeviceStopwatch:
    """Times queued work with CUDA events, and the creation of batches with the CPU's clock."""

    def __init__(self) -> None:
        self._host = HostStopwatch()
        self._spans: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def within(self, part: Part) -> Iterator[None]:
        if part == "data":
            with self._host.within(part):
                yield
            return
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        try:
            yield
        finally:
            ended.record()
            self._spans.append((part, began, ended))

    def take(self) -> Mapping[str, float]:
        seconds = defaultdict(float, self._host.take())
        while self._spans and self._spans[0][2].query():
            part, began, ended = self._spans.popleft()
            seconds[part] += began.elapsed_time(ended) / 1000
        return seconds


Stopwatch: TypeAlias = HostStopwatch | DeviceStopwatch
"""A stopwatch; ``take`` returns the seconds of each part since the last call."""


def stopwatch(device: torch.device) -> Stopwatch:
    """Return the stopwatch for the type of a device."""
    return DeviceStopwatch() if device.type == "cuda" else HostStopwatch()
