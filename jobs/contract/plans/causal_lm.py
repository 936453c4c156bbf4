"""The plan of ``causal_lm``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, TrainingPlan


class CausalLm(TrainingPlan):
    """A decoder-only transformer over bytes, trained on every matching file below ``data``.

    A row is one sequence of ``context`` tokens; one *item* is one token (a byte).
    """

    implementation: ClassVar = "jobs.workloads.causal_lm:CausalLanguageModel"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=("include",),
        trajectory=("context",),
        shape=("layers", "heads", "width"),
    )
    switches: ClassVar = frozenset({"attention"})
    benchmark: ClassVar[Mapping[str, Any]] = {
        "data": "stdlib",
        "steps": 200,
        "batch_size": 16,
        "context": 64,
        "layers": 2,
        "heads": 4,
        "width": 128,
        "eval_every": 100,
        "log_every": 10,
    }

    kind: Literal["causal_lm"] = "causal_lm"
    data: str = Field(description="Directory of text files, relative to the job file; or stdlib.")
    include: tuple[str, ...] = Field(("*.py", "*.txt", "*.md"), description="File name patterns to read.")
    batch_size: int = Field(16, ge=1, le=10**9, description="Sequences in one step, the effective batch.")
    context: int = Field(64, ge=8, le=8192, description="Tokens in one sequence.")
    layers: int = Field(2, ge=1, le=128, description="Transformer blocks.")
    heads: int = Field(4, ge=1, le=128, description="Attention heads in each block.")
    width: int = Field(128, ge=8, le=16384, description="Model width; a multiple of heads.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of activations dropped in training.")

    @model_validator(mode="after")
    def _width_divides(self) -> "CausalLm":
        if self.width % self.heads:
            fact = f"width {self.width} is not a multiple of heads {self.heads}"
            raise self.misfit(fact, "width", "heads")
        return self
