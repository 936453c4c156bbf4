"""The plans of the workloads: one plan per kind, in a union discriminated by ``kind``.

``WORKLOADS`` is the only list of the built-in workloads.  All other parts derive theirs from it: the job
file, the profiles' switches, the comparison of revisions, the trainer, ``runner bench``, and the tests
that kill and resume every workload.
"""

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, Union

from pydantic import Field

from jobs.contract.plans.adaptive import EarlyStopping as EarlyStopping
from jobs.contract.plans.adaptive import Plateau as Plateau
from jobs.contract.plans.adaptive import WeightAveraging as WeightAveraging
from jobs.contract.plans.base import STDLIB as STDLIB
from jobs.contract.plans.base import TRAJECTORY as TRAJECTORY
from jobs.contract.plans.base import WATCHED as WATCHED
from jobs.contract.plans.base import CheckpointFields as CheckpointFields
from jobs.contract.plans.base import TrainingPlan as TrainingPlan
from jobs.contract.plans.causal_lm import CausalLm as CausalLm
from jobs.contract.plans.graph_forecast import GraphForecast as GraphForecast
from jobs.contract.plans.imu_stream import ImuStream as ImuStream
from jobs.contract.plans.pair_classifier import Lora as Lora
from jobs.contract.plans.pair_classifier import PairClassifier as PairClassifier
from jobs.contract.plans.program import Program as Program
from jobs.contract.plans.program import ProgramCode as ProgramCode
from jobs.contract.plans.resident_transformer import ResidentTransformer as ResidentTransformer

WORKLOADS: Final[tuple[type[TrainingPlan], ...]] = (
    CausalLm,
    GraphForecast,
    ImuStream,
    PairClassifier,
    ResidentTransformer,
)
"""The built-in workloads.  To add one, write its plan and its module, and add the plan here."""

PLANS: Final[tuple[type[TrainingPlan | Program], ...]] = (*WORKLOADS, Program)

if TYPE_CHECKING:
    Plan: TypeAlias = TrainingPlan | Program
else:
    Plan = Annotated[Union[PLANS], Field(discriminator="kind")]  # noqa: UP007  (of a tuple)


def kind_of(plan: type[TrainingPlan | Program]) -> str:
    """Return the value of ``workload.kind`` that selects a plan."""
    kind: str = plan.model_fields["kind"].default
    return kind


KINDS: Final = tuple(kind_of(plan) for plan in PLANS)
