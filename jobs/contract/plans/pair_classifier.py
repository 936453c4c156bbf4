"""The plan of ``pair_classifier``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, TrainingPlan


class PairClassifier(TrainingPlan):
    """A transformer that is shown two molecules and says which one has the higher measured value.

    A row is a *group* of molecules, all of its pairs are judged, each in both orders; one *item* is one pair.
    """

    implementation: ClassVar = "jobs.workloads.pair_classifier:PairComparator"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=("value_column", "length"),
        trajectory=(
            "group", "threshold", "similar_weight", "swap_weight_start", "swap_weight_end", "masked",
        ),
        shape=("layers", "heads", "width"),
    )  # fmt: skip
    switches: ClassVar = frozenset({"conversion", "encode_once", "last_position_only"})
    benchmark: ClassVar[Mapping[str, Any]] = {
        "data": "solubility",
        "steps": 100,
        "batch_size": 16,
        "group": 4,
        "layers": 3,
        "heads": 4,
        "width": 64,
        "eval_every": 50,
        "eval_batches": 16,
        "log_every": 5,
    }

    kind: Literal["pair_classifier"] = "pair_classifier"
    data: str = Field(
        description="CSV file with columns smiles, value and split, or a directory that holds molecules.csv,"
        " relative to the job file; or the name of a prepared data set."
    )
    value_column: str = Field("logs", min_length=1, description="Column of the measured value.")
    batch_size: int = Field(16, ge=1, le=10**6, description="Groups in one step, the effective batch.")
    group: int = Field(4, ge=2, le=256, description="Molecules in a group; 2: every pair by itself.")
    threshold: float = Field(
        1.0, ge=0, description="Two values that differ by no more than this are similar."
    )
    similar_weight: float = Field(1.2, gt=0, description="Weight of similar pairs in the loss; others: 1.")
    swap_weight_start: float = Field(
        0.5, ge=0, description="Weight of the disagreement between the two orders of a pair, at first."
    )
    swap_weight_end: float = Field(2.0, ge=0, description="The same from half of the steps on.")
    masked: float = Field(0.1, ge=0, lt=1, description="Share of characters hidden in training.")
    length: int = Field(96, ge=2, le=8192, description="Characters of the longest molecule, and one.")
    layers: int = Field(3, ge=1, le=128, description="Transformer blocks; the last one makes the summary.")
    heads: int = Field(4, ge=1, le=128, description="Attention heads in each block.")
    width: int = Field(64, ge=8, le=16384, description="Model width; a multiple of heads.")

    @model_validator(mode="after")
    def _width_divides(self) -> "PairClassifier":
        if self.width % self.heads:
            fact = f"width {self.width} is not a multiple of heads {self.heads}"
            raise self.misfit(fact, "width", "heads")
        return self
