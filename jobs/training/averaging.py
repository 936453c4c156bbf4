"""Averages of the weights: ``torch.optim.swa_utils.AveragedModel`` as a function of the step."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jobs.contract import TrainingPlan, WeightAveraging
from jobs.contract.plans.adaptive import MovingAverage


class Averaging:
    """The mean of the weights along the end of a training, or their exponential moving average.

    Buffers are averaged with the parameters, so running statistics need no pass over the data afterwards.
    """

    def __init__(self, plan: TrainingPlan, model: nn.Module) -> None:
        self._plan = plan
        self._model = model
        self._mean: AveragedModel | None = None

    @property
    def is_active(self) -> bool:
        """Return True if there is a mean by now."""
        return self._mean is not None

    def stepped(self, step: int) -> None:
        """Let the weights after this many steps enter the mean if it is their turn."""
        wanted = self._plan.swa or self._plan.ema
        if wanted is None or step < first_step(self._plan, wanted):
            return
        every = wanted.average_every if isinstance(wanted, WeightAveraging) else 1
        if (step - first_step(self._plan, wanted)) % every == 0 or step == self._plan.steps:
            self._made().update_parameters(self._model)

    def _made(self) -> AveragedModel:
        if self._mean is None:
            ema = self._plan.ema
            moving = None if ema is None else get_ema_multi_avg_fn(ema.decay)
            self._mean = AveragedModel(self._model, multi_avg_fn=moving, use_buffers=True)
        return self._mean

    def weights(self) -> Mapping[str, Tensor]:
        """Return the mean, or the weights of the model as long as there is none."""
        return self._model.state_dict() if self._mean is None else self._mean.module.state_dict()

    def tensors(self) -> Iterator[Tensor]:
        """Yield the parameters of the mean."""
        if self._mean is not None:
            yield from self._mean.module.parameters()

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the model have the mean as its weights within the context."""
        if self._mean is None:
            yield
            return
        own = {name: tensor.detach().clone() for name, tensor in self._model.state_dict().items()}
        self._model.load_state_dict(self._mean.module.state_dict())
        try:
            yield
        finally:
            self._model.load_state_dict(own)

    def state(self) -> dict[str, Any]:
        """Return what a resume needs; empty as long as there is no mean."""
        if self._mean is None:
            return {}
        return {"count": int(self._mean.n_averaged), "model": dict(self._mean.module.state_dict())}

    def load(self, state: Mapping[str, Any], step: int) -> None:
        """Take over the mean of a checkpoint; without one, or before its first step, there is none."""
        self._mean = None
        wanted = self._plan.swa or self._plan.ema
        if state and wanted is not None and step >= first_step(self._plan, wanted):
            mean = self._made()
            mean.module.load_state_dict(state["model"])
            mean.n_averaged.fill_(state["count"])


def first_step(plan: TrainingPlan, wanted: WeightAveraging | MovingAverage) -> int:
    """Return the number of steps after which the weights enter the mean for the first time."""
    return max(1, math.ceil(wanted.start * plan.steps))


def averaging_rate(plan: TrainingPlan, step: int, rate: float, rate_at_start: float) -> float:
    """Return the learning rate of a step: that of the schedule, or the constant one while averaging.

    As in ``torch.optim.swa_utils.SWALR``, the rate goes from that of the schedule where averaging begins
    to the constant one along a cosine.
    """
    swa = plan.swa
    if swa is None or swa.learning_rate is None or step < first_step(plan, swa):
        return rate
    done = step - first_step(plan, swa)
    if done >= swa.anneal_steps:
        return swa.learning_rate
    share = (1 - math.cos(math.pi * done / swa.anneal_steps)) / 2
    return rate_at_start + share * (swa.learning_rate - rate_at_start)
