"""Trainings of mixed length that arrive one after the other: the same day for every queue."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LONG, MEDIUM, SHORT = "long", "medium", "short"
STEPS: Final = {SHORT: 60, MEDIUM: 400, LONG: 8000}
"""Of a causal language model of two layers, at 5 to 20 ms a step on one core."""

SPAN_S: Final = 20.0
"""For each device: the time in which the shorter ones come, less than the long ones take on two cores."""

MEDIUM_SHARE: Final = 0.2
"""Of the trainings that come while the long ones work."""


@dataclass(frozen=True, slots=True)
class Training:
    """One training of the day."""

    name: str
    kind: str
    seed: int
    at_s: float  # after the beginning of the day
    steps: int

    def job_file(self) -> str:
        """Return the job file; a processor stands in for the device."""
        return f"""\
name: {self.name}
seed: {self.seed}
workload:
  kind: causal_lm
  data: stdlib
  context: 64
  layers: 2
  width: 64
  heads: 2
  batch_size: 8
  steps: {self.steps}
  eval_every: null
  eval_batches: 1
  log_every: 5
resources: {{cpus: 1, memory: 1GiB}}
checkpoint: {{every: 30s}}
"""


@dataclass(frozen=True, slots=True)
class End:
    """Outcome of a training."""

    submitted_s: float  # the time of day
    ended_s: float
    weights: str
    starts: int


def day(count: int, devices: int, share: float = 1.0) -> tuple[Training, ...]:
    """Return the trainings by arrival: a long one for each device, then shorter ones while those work.

    Args:
        count: all of them.
        devices: how many trainings the machine runs at a time.
        share: part of the full number of steps.
    """
    dice = random.Random(count)  # noqa: S311 - no secret
    made = [_training(f"long{number}", LONG, number, 0.5 * number, share) for number in range(devices)]
    later = count - devices
    span_s = share * SPAN_S * devices
    for number, at_s in enumerate(sorted(dice.uniform(0.1, 1.0) * span_s for _ in range(later))):
        kind = MEDIUM if dice.random() < MEDIUM_SHARE else SHORT
        made.append(_training(f"{kind}{number}", kind, 100 + number, at_s, share))
    return tuple(sorted(made, key=lambda training: training.at_s))


def _training(name: str, kind: str, seed: int, at_s: float, share: float) -> Training:
    return Training(name, kind, seed, at_s, max(2, int(STEPS[kind] * share)))


def play(trainings: Sequence[Training], submit: Callable[[Training], None]) -> None:
    """Submit each training at its time."""
    began_s = time.monotonic()
    for training in trainings:
        time.sleep(max(0.0, began_s + training.at_s - time.monotonic()))
        submit(training)


def slowdowns(
    trainings: Sequence[Training], ends: Mapping[str, End], alone_s: Mapping[str, float]
) -> tuple[float, ...]:
    """Return for each training the time from submission to end, by that of its kind on the idle machine."""
    return tuple(
        (ends[each.name].ended_s - ends[each.name].submitted_s) / alone_s[each.kind] for each in trainings
    )
