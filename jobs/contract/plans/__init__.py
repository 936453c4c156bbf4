"""The plans of the workloads: one plan per kind, in a union discriminated by ``kind``.

``WORKLOADS`` is the only list of the workloads: those below, and those of plug-ins (group ``workloads`` of
``jobs.contract.plugins``).  All other parts derive theirs from it: the job file, the profiles' switches, the
comparison of revisions, the trainer, ``runner bench``, and the tests that kill and resume every workload.
"""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, Union

from pydantic import Field

from jobs.contract.plans.adaptive import EarlyStopping as EarlyStopping
from jobs.contract.plans.adaptive import MovingAverage as MovingAverage
from jobs.contract.plans.adaptive import Plateau as Plateau
from jobs.contract.plans.adaptive import WeightAveraging as WeightAveraging
from jobs.contract.plans.base import STDLIB as STDLIB
from jobs.contract.plans.base import TRAJECTORY as TRAJECTORY
from jobs.contract.plans.base import WATCHED as WATCHED
from jobs.contract.plans.base import CheckpointFields as CheckpointFields
from jobs.contract.plans.base import TrainingPlan as TrainingPlan
from jobs.contract.plans.pair_classifier import Lora as Lora
from jobs.contract.plans.program import Program as Program
from jobs.contract.plans.program import ProgramCode as ProgramCode
from jobs.contract.plugins import load_plugins

OWN: Final = {
    "causal_lm": "jobs.contract.plans.causal_lm:CausalLm",
    "graph_forecast": "jobs.contract.plans.graph_forecast:GraphForecast",
    "imu_stream": "jobs.contract.plans.imu_stream:ImuStream",
    "pair_classifier": "jobs.contract.plans.pair_classifier:PairClassifier",
    "resident_transformer": "jobs.contract.plans.resident_transformer:ResidentTransformer",
}
"""The plans of the built-in workloads, as entry points name those of plug-ins."""


def kind_of(plan: type[TrainingPlan | Program]) -> str:
    """Return the value of ``workload.kind`` that selects a plan."""
    kind: str = plan.model_fields["kind"].default
    return kind


def checked_plan(name: str, value: object) -> type[TrainingPlan]:
    """Return the plan of an entry point.

    Raises:
        TypeError, ValueError: it is not a plan, has another kind, or does not say what its fields do.
    """
    if not (isinstance(value, type) and issubclass(value, TrainingPlan)):
        raise TypeError("must be a class that inherits from TrainingPlan")
    if name == "program":
        raise ValueError("the name is taken; rename it")
    if "kind" not in value.model_fields or kind_of(value) != name:
        raise ValueError(f'its kind must be Literal["{name}"], as its entry point is called')
    missing = {"implementation", "checkpoint_fields", "benchmark"} - set(dir(value))
    if missing:
        raise ValueError(f"lacks the class variables {', '.join(sorted(missing))}")
    groups = value.checkpoint_fields
    told = Counter((*groups.data, *groups.shape, *groups.trajectory, *groups.reports))
    own = value.model_fields.keys() - TrainingPlan.model_fields.keys() - {"kind", "dropout"}
    if wrong := own ^ told.keys() | {field for field, times in told.items() if times > 1}:
        names = ", ".join(sorted(wrong))
        raise ValueError(f"checkpoint_fields must have each field of its own once: {names}")
    return value


WORKLOAD_REGISTRY: Final = load_plugins("workloads", OWN, checked_plan)

WORKLOADS: Final[tuple[type[TrainingPlan], ...]] = tuple(WORKLOAD_REGISTRY.found.values())

PLANS: Final[tuple[type[TrainingPlan | Program], ...]] = (*WORKLOADS, Program)

if TYPE_CHECKING:
    Plan: TypeAlias = TrainingPlan | Program
else:
    Plan = Annotated[Union[PLANS], Field(discriminator="kind")]  # noqa: UP007  (of a tuple)

KINDS: Final = tuple(kind_of(plan) for plan in PLANS)
