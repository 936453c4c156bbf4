"""The part of the plan that all built-in workloads share."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from jobs.contract.base import BILLION, Spec
from jobs.contract.plans.adaptive import EarlyStopping, MovingAverage, Plateau, WeightAveraging

STDLIB: Final = "stdlib"
"""Value for the library sources of the Python that runs the job, in place of a directory of text."""


def _is_none(value: object) -> bool:
    """Return True if a field is left out of the JSON, so that signatures and earlier images stay the same."""
    return value is None


@dataclass(frozen=True, slots=True)
class CheckpointFields:
    """The effect of a change of each plan field on checkpoints; every field is in exactly one group."""

    data: tuple[str, ...] = ()  # other data, or other reading of the data: no checkpoint fits
    shape: tuple[str, ...] = ()  # parameters of another shape: no checkpoint fits
    trajectory: tuple[str, ...] = ()  # a checkpoint fits, but the training continues differently
    reports: tuple[str, ...] = ()  # what is told on the way; the training stays the same to the bit


PART: Final = re.compile(r"\[([1-9])/([1-9])\]$")
"""Part of a tensor that an entry of ``rename`` means: the first third is ``[1/3]``."""


class ForeignNames(Spec):
    """The names that another code base has for the tensors of a model."""

    entry: str | None = Field(
        None,
        max_length=200,
        description="The entry of the file that has the weights, such as model_state_dict; null: the file"
        " itself, or the one of state_dict, model_state_dict and model that it has.",
    )
    prefix: str = Field("", max_length=200, description="What every name begins with there, such as model.")
    rename: dict[str, str] = Field(
        {},
        max_length=1000,
        description="Beginnings of names, there and here, without the prefix; the first that fits counts. A *"
        " is one part of a name, and [1/3] at the end: the first of three tensors there that are one here.",
    )

    @model_validator(mode="after")
    def _maps_what_it_matches(self) -> Self:
        for there, here in self.rename.items():
            fact = ""
            if there.count("*") != here.count("*"):
                fact = f"{there}: {here}: has not the same number of * on both sides"
            elif (match := PART.search(here)) and match[1] > match[2]:
                fact = f"{here}: there is no part {match[1]} of {match[2]}"
            if fact:
                raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("rename",)})
        return self


class InitMap(ForeignNames):
    """Mapping from the weights of a file to those of the model."""

    partial: bool = Field(
        default=False, description="Load what fits and keep the rest random, instead of an error."
    )


class Export(ForeignNames):
    """The finished model in the layout of another code base."""

    format: Literal["state_dict", "huggingface", "peft"] = Field(
        description="A file of torch.save, a directory of transformers, or an adapter of peft."
    )
    file: str = Field(
        "model.pt", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$", description="Of a state_dict: its file."
    )
    partial: bool = Field(
        default=False, description="Write only the tensors that rename names, instead of all of them."
    )


Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Clean(Spec):
    """Numbers of the data that are none, and what stands in their place."""

    nan: Number | Literal["usual"] | None = Field(
        "usual",
        description="In place of NaN: a number; null: it counts as missing; usual: as without clean.",
    )
    inf: Number | Literal["usual"] | None = Field("usual", description="The same of infinite numbers.")


class TrainingPlan(Spec):
    """One training: how long, in which portions, and along which learning rate.

    The *effective batch* is the unit of a step, however small the micro-batch.

    A subclass is the one description of its workload: the class variables below are all that the job file,
    the profiles, the policy's comparison of revisions, the trainer and the benchmarks know about it.
    """

    implementation: ClassVar[str]
    """``module:class`` of the workload, or a function that builds it; imported only for jobs of this kind."""
    checkpoint_fields: ClassVar[CheckpointFields]
    """The fields that the workload adds to those below, each with its effect on a checkpoint."""
    switches: ClassVar[frozenset[str]] = frozenset()
    """The profile switches that this workload supports in addition to those of every workload."""
    exports: ClassVar[frozenset[str]] = frozenset({"state_dict"})
    """Formats in which it writes its finished model for other code."""
    path_fields: ClassVar[tuple[str, ...]] = ()
    """Fields besides ``data`` that name a file or a directory of the host, which the job gets read-only."""
    evaluates: ClassVar[tuple[str, ...]] = ()
    """Names of the numbers that an evaluation may report, ``*`` for what differs; empty: not known."""
    benchmark: ClassVar[Mapping[str, Any]]
    """Fields of the job that ``runner bench KIND`` measures; it takes at most two minutes on two cores."""

    if TYPE_CHECKING:
        kind: str  # a Literal in each plan, after the fields below; stored revisions have this order

    data: str = Field(
        description="Directory or file, relative to the job file; or the name of a prepared data set."
    )
    steps: int = Field(200, ge=1, le=BILLION, description="Optimiser steps of the whole job.")
    epochs: float | None = Field(
        None,
        gt=0,
        le=BILLION,
        description="Passes over the training data, in place of steps; the program counts how many steps they"
        " are.",
    )
    batch_size: int = Field(16, ge=1, le=BILLION, description="Rows in one step, the effective batch.")
    learning_rate: float = Field(1e-3, gt=0, description="Peak, reached after the warm-up.")
    warmup_steps: int = Field(20, ge=0, le=BILLION, description="Steps over which the learning rate rises.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate goes from its peak to its floor."
    )
    floor: float = Field(0.1, ge=0, le=1, description="The learning rate's end, as a share of its peak.")
    weight_decay: float = Field(0.1, ge=0, description="AdamW; on matrices alone.")
    grad_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    eval_every: int | None = Field(50, ge=1, le=BILLION, description="Steps between evaluations; null: none.")
    eval_batches: int = Field(4, ge=1, le=BILLION, description="Batches in one evaluation.")
    log_every: int = Field(10, ge=1, le=BILLION, description="Steps between lines of the log.")
    init_from: str | None = Field(
        None,
        min_length=1,
        exclude_if=_is_none,
        description="Weights to begin with: job/NAME/best or job/NAME/final of an earlier job, a directory"
        " with weights, or a file that torch.save wrote, relative to the job file; null: random ones.",
    )
    init_map: InitMap | None = Field(
        None, exclude_if=_is_none, description="The names of those weights; null: they are the model's."
    )
    export: Export | None = Field(
        None, exclude_if=_is_none, description="Write the finished model for another code base, too."
    )
    early_stopping: EarlyStopping | None = Field(
        None, exclude_if=_is_none, description="End when evaluations no longer improve; null: never."
    )
    lr_plateau: Plateau | None = Field(
        None,
        exclude_if=_is_none,
        description="Lower the learning rate when evaluations no longer improve; null: never.",
    )
    swa: WeightAveraging | None = Field(
        None, exclude_if=_is_none, description="Average the weights of the last steps; null: do not."
    )
    ema: MovingAverage | None = Field(
        None,
        exclude_if=_is_none,
        description="Keep an exponential moving average of the weights, in place of swa; null: do not.",
    )

    @model_validator(mode="after")
    def _has_one_average(self) -> Self:
        if self.swa is not None and self.ema is not None:
            raise self.misfit("is an average of the weights, and so is swa: keep one", "ema")
        return self

    @model_validator(mode="after")
    def _has_one_length(self) -> Self:
        if self.epochs is not None and "steps" in self.model_fields_set:
            raise self.misfit("are passes over the data, and steps are given as well: keep one", "epochs")
        return self

    @model_validator(mode="after")
    def _has_weights_to_name(self) -> Self:
        if self.init_map is not None and self.init_from is None:
            raise self.misfit("are names of weights, and init_from names none", "init_map")
        if self.export is not None and self.export.format not in self.formats:
            known = ", ".join(sorted(self.formats))
            raise self.misfit(f"format: this model is written as {known}", "export")
        return self

    @property
    def formats(self) -> frozenset[str]:
        """The formats in which the model of this plan can be exported."""
        return self.exports

    @model_validator(mode="after")
    def _has_evaluations_to_watch(self) -> Self:
        for name in ("early_stopping", "lr_plateau"):
            if getattr(self, name) is not None and self.eval_every is None:
                raise self.misfit("watches evaluations, and eval_every is null: there are none", name)
        return self

    @model_serializer(mode="wrap")
    def _with_one_length(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the length that is not in force; without epochs, the JSON is that of every version."""
        known: dict[str, Any] = dump(self)
        known.pop("epochs" if self.epochs is None else "steps", None)
        return known

    @property
    def takes_packages(self) -> bool:
        """Return True if a job may add packages to the image, because fields ask for some that it lacks."""
        return False

    @property
    def named_paths(self) -> Mapping[str, str]:
        """The paths of the host that the plan names besides ``data``, by field."""
        named = {name: getattr(self, name) for name in self.path_fields}
        return {name: path for name, path in named.items() if path is not None}

    @property
    def known_steps(self) -> int | None:
        """The steps of the whole job, None if only the program can count them, from its data."""
        return self.steps if self.epochs is None else None

    def with_steps(self, steps_per_epoch: int) -> Self:
        """Return the plan with its length in steps."""
        if self.epochs is None:
            return self
        return self.model_copy(update={"steps": ceil(self.epochs * steps_per_epoch), "epochs": None})

    @property
    def is_watched(self) -> bool:
        """Return True if evaluations decide when the training ends, or how fast it learns."""
        return self.early_stopping is not None or self.lr_plateau is not None

    def misfit(self, fact: str, *names: str) -> PydanticCustomError:
        """Return the error for fields that do not fit together, located at the first one that was given."""
        given = [name for name in names if name in self.model_fields_set]
        return PydanticCustomError("below", "{fact}", {"fact": fact, "path": (*given, *names)[:1]})


def left_out_by_default(default: object, **constraints: Any) -> Any:  # noqa: ANN401  (what a model expects)
    """Return a field that the JSON of a plan has only where it is not its default.

    The JSON of a plan that does not use the field is then that of earlier versions.
    """
    return Field(default, exclude_if=lambda value: value == default, **constraints)


TRAJECTORY: Final = (
    "steps",
    "epochs",
    "batch_size",
    "learning_rate",
    "warmup_steps",
    "schedule",
    "floor",
    "weight_decay",
    "grad_clip",
    "early_stopping",
    "lr_plateau",
    "swa",
    "ema",
)
"""Fields of every plan that affect the trajectory of a training, but not checkpoint compatibility."""

WATCHED: Final = ("eval_every", "eval_batches")
"""Fields that affect the trajectory if evaluations decide something, as with early stopping."""
