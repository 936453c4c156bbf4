"""What each workload is told: one model per kind, a union discriminated by ``kind``."""

from typing import Annotated, TypeAlias

from pydantic import Field

from jobs.contract.plans.base import STDLIB, TRAJECTORY, TrainingPlan
from jobs.contract.plans.causal_lm import CausalLm
from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.contract.plans.imu_stream import ImuStream
from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.contract.plans.program import Program
from jobs.contract.plans.resident_transformer import ResidentTransformer

BuiltIn: TypeAlias = CausalLm | GraphForecast | ImuStream | PairClassifier | ResidentTransformer
"""The plans that the trainer carries out."""

Plan: TypeAlias = Annotated[BuiltIn | Program, Field(discriminator="kind")]

PLANS: tuple[type[BuiltIn | Program], ...] = (
    CausalLm,
    GraphForecast,
    ImuStream,
    PairClassifier,
    ResidentTransformer,
    Program,
)

KINDS: tuple[str, ...] = tuple(plan.model_fields["kind"].default for plan in PLANS)

__all__ = [
    "KINDS",
    "PLANS",
    "STDLIB",
    "TRAJECTORY",
    "BuiltIn",
    "CausalLm",
    "GraphForecast",
    "ImuStream",
    "PairClassifier",
    "Plan",
    "Program",
    "ResidentTransformer",
    "TrainingPlan",
]
