"""Measurement in turns (A B C A B C), so that disturbances of the machine affect all contestants equally."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.support.result import CannotMeasure


def interleave(
    rounds: int, warmups: int, contestants: Mapping[str, Callable[[], float]]
) -> dict[str, tuple[float, ...]]:
    """Return the seconds that each contestant reported in each round, the warm-ups left out."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(warmups + rounds):
        for name, measure in contestants.items():
            took = measure()
            if number >= warmups:
                seconds[name].append(took)
    return {name: tuple(values) for name, values in seconds.items()}


def time_command(argv: Sequence[str], env: Mapping[str, str], cwd: Path | None = None) -> Callable[[], float]:
    """Return a contestant that times a program from start to end.

    Raises:
        CannotMeasure: the program failed, so the measurement is invalid.
    """

    def measure() -> float:
        began = time.perf_counter()
        done = subprocess.run(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - began
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:]
            program = argv[0].rpartition("/")[2]
            raise CannotMeasure(f"{program} ended with exit code {done.returncode}: {said}")
        return took

    return measure


def time_call(
    work: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """Return a contestant that times a call."""

    def measure() -> float:
        began = clock()
        work()
        return clock() - began

    return measure


def wait_for(what: str, found: Callable[[], bool], limit_s: float, pause_s: float) -> float:
    """Poll until ``found`` is true, and return the time on ``time.perf_counter``'s clock.

    Raises:
        CannotMeasure: the limit was exceeded.
    """
    deadline = time.monotonic() + limit_s
    while not found():
        if time.monotonic() > deadline:
            raise CannotMeasure(f"{what}: not seen within {limit_s:.0f} s")
        time.sleep(pause_s)
    return time.perf_counter()
