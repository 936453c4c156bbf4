"""Early stopping and learning-rate plateaus: what the evaluations of a training decide.

Both are functions of the values of the evaluations, in their order.  Their state is part of the checkpoint.
A checkpoint that was saved before the evaluation of its step lacks that evaluation: a resume repeats it.
"""

import math
import struct
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from jobs.contract import EarlyStopping, Plateau, TrainingPlan
from jobs.training.failures import InvalidSpec
from jobs.training.optimizer import BareOptimizer
from jobs.training.ranks import Ranks
from jobs.workloads.protocol import Evaluation

_MOVING: Final = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")
"""Fields of a ``ReduceLROnPlateau`` that change; its other fields come from the spec."""


class StopCriterion:
    """Counts the evaluations in a row that are no improvement."""

    def __init__(self, plan: EarlyStopping) -> None:
        self._plan = plan
        self._rule = [plan.metric, plan.better, plan.min_delta, plan.after_steps]
        self._best: float | None = None
        self._bad = 0

    @property
    def is_met(self) -> bool:
        """Return True if there were as many evaluations without an improvement as are tolerated."""
        return self._bad >= self._plan.patience

    def observe(self, found: Evaluation, step: int, ranks: Ranks) -> str | None:
        """Return the reason why training ends, None if it goes on."""
        name, sign = _watched("early_stopping", self._plan, found)
        value = _from_leader(ranks, found.metrics[name])
        is_better = self._best is None or sign * (value - self._best) > self._plan.min_delta
        if is_better and math.isfinite(value):
            self._best, self._bad = value, 0
            return None
        if step < self._plan.after_steps:
            return None
        self._bad += 1
        if not self.is_met:
            return None
        evaluations = "1 evaluation" if self._bad == 1 else f"{self._bad} evaluations"
        best = "was never finite" if self._best is None else f"has been no better than {self._best:.6g}"
        return f"{name} {best} for {evaluations}"

    def state(self) -> dict[str, Any]:
        return {"best": self._best, "bad": self._bad, "rule": self._rule}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what was counted; if something else was, the count begins anew."""
        if state.get("rule", self._rule) == self._rule:
            self._best, self._bad = state["best"], state["bad"]


class RateReduction:
    """Multiplies the learning rate by a factor, as ``ReduceLROnPlateau`` of PyTorch decides."""

    def __init__(self, plan: Plateau, learning_rate: float) -> None:
        self._plan = plan
        self._peak = learning_rate
        self._watched = [plan.metric, plan.better]
        self._optimizer = BareOptimizer([torch.zeros(1)], {"lr": learning_rate})
        self._scheduler: ReduceLROnPlateau | None = None
        self._loaded: dict[str, Any] = {}

    @property
    def factor(self) -> float:
        """By what the learning rate of the schedule is multiplied."""
        return float(self._optimizer.param_groups[0]["lr"]) / self._peak

    def observe(self, found: Evaluation, ranks: Ranks) -> str | None:
        """Return the reduction in words, None if the rate stays."""
        name, sign = _watched("lr_plateau", self._plan, found)
        value, before = _from_leader(ranks, found.metrics[name]), self.factor
        self._for("max" if sign > 0 else "min").step(value)
        if self.factor == before:
            return None
        peak = self.factor * self._peak
        return f"{name} is on a plateau: learning rate x {self.factor:.4g}, its peak is {peak:.4g}"

    def _for(self, mode: Any) -> ReduceLROnPlateau:  # noqa: ANN401  (a Literal of torch's)
        """Return the scheduler, which is made when the direction of the metric is known."""
        if self._scheduler is None:
            plan = self._plan
            self._scheduler = ReduceLROnPlateau(
                self._optimizer,
                mode=mode,
                factor=plan.factor,
                patience=plan.patience,
                threshold=plan.threshold,
                threshold_mode=plan.threshold_mode,
                cooldown=plan.cooldown,
                min_lr=plan.min_learning_rate,
            )
            vars(self._scheduler).update(self._loaded)
        return self._scheduler

    def state(self) -> dict[str, Any]:
        known = vars(self._scheduler) if self._scheduler else self._loaded
        moving = {name: known[name] for name in _MOVING if name in known}
        rate = float(self._optimizer.param_groups[0]["lr"])
        return {**moving, "lr": rate, "peak": self._peak, "watched": self._watched}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the reductions, and what was counted; if another metric was, the count begins anew."""
        same = state.get("watched", self._watched) == self._watched
        self._loaded = {name: state[name] for name in _MOVING if same and name in state}
        self._scheduler = None
        peak = state.get("peak", self._peak)
        rate = state["lr"]
        if peak != self._peak:
            rate = max(rate / peak * self._peak, min(self._plan.min_learning_rate, self._peak))
        self._optimizer.param_groups[0]["lr"] = rate


class Adaptation:
    """Decisions so far from the evaluations of one training."""

    def __init__(self, plan: TrainingPlan) -> None:
        self._stop = None if plan.early_stopping is None else StopCriterion(plan.early_stopping)
        self._rate = None if plan.lr_plateau is None else RateReduction(plan.lr_plateau, plan.learning_rate)
        self.stopped: str | None = None
        """Reason for which training ends before its last step."""

    @property
    def rate_factor(self) -> float:
        """By what the learning rate of the schedule is multiplied."""
        return 1.0 if self._rate is None else self._rate.factor

    def observe(self, found: Evaluation, step: int, ranks: Ranks) -> tuple[str, ...]:
        """Take an evaluation into account, and return what follows from it in words.

        Raises:
            InvalidSpec: A metric of the spec is none of the evaluation's.
        """
        said = None if self._rate is None else self._rate.observe(found, ranks)
        if self._stop is not None:
            self.stopped = self._stop.observe(found, step, ranks)
        return () if said is None else (said,)

    def state(self) -> dict[str, Any]:
        """Return what a resume needs; empty if evaluations decide nothing."""
        parts = {"early_stopping": self._stop, "lr_plateau": self._rate}
        state: dict[str, Any] = {name: part.state() for name, part in parts.items() if part is not None}
        return {**state, "stopped": self.stopped} if state else {}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the state of a checkpoint, as far as the spec still asks for it."""
        for name, part in (("early_stopping", self._stop), ("lr_plateau", self._rate)):
            if part is not None and name in state:
                part.load(state[name])
        self.stopped = state.get("stopped") if self._stop is not None and self._stop.is_met else None


def check_metrics(plan: TrainingPlan, found: Evaluation) -> None:
    """Check that an evaluation has the metrics that the plan watches.

    Raises:
        InvalidSpec: It lacks one.
    """
    for field, watching in (("early_stopping", plan.early_stopping), ("lr_plateau", plan.lr_plateau)):
        if watching is not None:
            _watched(field, watching, found)


def _watched(field: str, plan: EarlyStopping | Plateau, found: Evaluation) -> tuple[str, int]:
    """Return the metric that a setting watches, and 1 if higher values are better, else -1."""
    name = plan.metric or found.primary
    if name not in found.metrics:
        known = ", ".join(found.metrics)
        raise InvalidSpec(f"workload.{field}.metric: there is no {name}; an evaluation has {known}")
    higher = found.higher_is_better if plan.better == "auto" else plan.better == "higher"
    return name, 1 if higher else -1


def _from_leader(ranks: Ranks, value: float) -> float:
    """Return the leader's value, so that all processes decide alike."""
    (told,) = struct.unpack("<q", struct.pack("<d", value))
    (leaders,) = struct.unpack("<d", struct.pack("<q", ranks.from_leader(told)))
    return float(leaders)
