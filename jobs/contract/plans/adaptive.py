"""The settings of a training that depend on its evaluations, or average its weights."""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from jobs.contract.base import BILLION, Spec


class Watch(Spec):
    """The metric of an evaluation that decides something."""

    metric: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="A metric of the evaluations; null: the one that selects the best checkpoint.",
    )
    better: Literal["auto", "lower", "higher"] = Field(
        "auto", description="Which values are better; auto: as for the best checkpoint."
    )

    @model_validator(mode="after")
    def _says_what_is_better(self) -> Self:
        if self.metric is not None and self.better == "auto":
            fact = f"say whether lower or higher values of {self.metric} are better"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("better",)})
        return self


class EarlyStopping(Watch):
    """Ends a training whose evaluations no longer improve; its model is published as at the last step."""

    patience: int = Field(
        5, ge=1, le=BILLION, description="Evaluations in a row without an improvement, after which it ends."
    )
    min_delta: float = Field(0.0, ge=0, description="The least difference that counts as an improvement.")
    after_steps: int = Field(
        0, ge=0, le=BILLION, description="Evaluations before this step do not count against the patience."
    )


class Plateau(Watch):
    """Lowers the learning rate when evaluations no longer improve: ``ReduceLROnPlateau`` of PyTorch."""

    factor: float = Field(0.1, gt=0, lt=1, description="The learning rate is multiplied by this.")
    patience: int = Field(
        10, ge=0, le=BILLION, description="Evaluations in a row without an improvement that are tolerated."
    )
    threshold: float = Field(1e-4, ge=0, description="The least improvement that counts.")
    threshold_mode: Literal["rel", "abs"] = Field(
        "rel", description="rel: as a share of the best value; abs: as a difference."
    )
    cooldown: int = Field(
        0, ge=0, le=BILLION, description="Evaluations after a reduction during which none is counted."
    )
    min_learning_rate: float = Field(
        0.0, ge=0, description="The lowest peak that the reductions lead to; the schedule applies to it."
    )


class WeightAveraging(Spec):
    """Stochastic weight averaging: the mean of the weights along the end of the training.

    From the first average on, evaluations, the best checkpoint and the finished model are those of the mean.
    """

    start: float = Field(0.75, ge=0, lt=1, description="Share of the steps after which averaging begins.")
    average_every: int = Field(
        10, ge=1, le=BILLION, description="Steps between two weights that enter the mean."
    )
    learning_rate: float | None = Field(
        None, gt=0, description="The constant rate while averaging; null: the schedule goes on."
    )
    anneal_steps: int = Field(
        0, ge=0, le=BILLION, description="Steps over which the rate goes to that constant, as a cosine."
    )

    @model_validator(mode="after")
    def _anneals_to_something(self) -> Self:
        if self.anneal_steps and self.learning_rate is None:
            fact = "needs a learning_rate to go to"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("anneal_steps",)})
        return self


class MovingAverage(Spec):
    """An exponential moving average of the weights, updated after each step.

    As soon as it begins, evaluations, the best checkpoint and the finished model are those of the average.
    """

    decay: float = Field(0.999, gt=0, lt=1, description="Share of the average that each step keeps.")
    start: float = Field(0.0, ge=0, lt=1, description="Share of the steps after which it begins.")
