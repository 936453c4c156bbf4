"""The plan of ``causal_lm``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, TrainingPlan, left_out_by_default

BUILT_IN: Final = ("bytes", "characters")
"""The tokenizers that need no file."""


class CausalLm(TrainingPlan):
    """A decoder-only transformer over bytes, characters or tokens, trained on one text or many.

    A row is one sequence of ``context`` tokens; one *item* is one token.
    """

    implementation: ClassVar = "jobs.workloads.causal_lm:CausalLanguageModel"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=("include", "files", "tokenizer"),
        trajectory=("context", "windows", "stride"),
        reports=("samples", "sample_tokens", "sample_prompt"),
        shape=("layers", "heads", "width", "positions", "vocabulary"),
    )
    switches: ClassVar = frozenset({"attention"})
    exports: ClassVar = frozenset({"state_dict", "huggingface"})
    evaluates: ClassVar[tuple[str, ...]] = ("eval_loss", "perplexity", "bits_per_byte")
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
    data: str = Field(
        description="Text file, or directory of text files, relative to the job file; or stdlib."
    )
    include: tuple[str, ...] = Field(("*.py", "*.txt", "*.md"), description="File name patterns to read.")
    batch_size: int = Field(16, ge=1, le=10**9, description="Sequences in one step, the effective batch.")
    context: int = Field(64, ge=8, le=8192, description="Tokens in one sequence.")
    layers: int = Field(2, ge=1, le=128, description="Transformer blocks.")
    heads: int = Field(4, ge=1, le=128, description="Attention heads in each block.")
    width: int = Field(128, ge=8, le=16384, description="Model width; a multiple of heads.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of activations dropped in training.")

    files: tuple[str, ...] = left_out_by_default(
        (),
        max_length=10_000,
        description="Files below data in the order in which they are read, in place of include.",
    )
    tokenizer: str = left_out_by_default(
        "bytes",
        min_length=1,
        description="bytes; characters, those of the training text; or a tokenizer.json, relative to the job"
        " file (runner data tokenize).",
    )
    positions: Literal["learned", "sinusoidal"] = left_out_by_default(
        "learned", description="Vectors of the positions: trained ones, or fixed sines and cosines."
    )
    vocabulary: int | None = left_out_by_default(
        None,
        ge=2,
        le=2**20,
        description="Rows of the embedding, at least as many as the tokenizer has tokens; null: as many.",
    )
    windows: Literal["anywhere", "separate", "overlapping"] = left_out_by_default(
        "anywhere",
        description="Sequences at random places; or side by side, each once in an epoch, in an order that is"
        " shuffled anew; or so that each begins stride tokens after the one before.",
    )
    stride: int | None = left_out_by_default(
        None,
        ge=1,
        le=8192,
        description="Tokens between the beginnings of overlapping windows; null: half of context.",
    )
    samples: int = left_out_by_default(
        0, ge=0, le=100, description="Texts that the model writes into the log at each evaluation."
    )
    sample_tokens: int = left_out_by_default(64, ge=1, le=8192, description="Tokens of each of them.")
    sample_prompt: str = left_out_by_default(
        "", max_length=10_000, description="The text that they continue; empty: the end of a line."
    )

    @property
    def named_paths(self) -> Mapping[str, str]:
        return {} if self.tokenizer in BUILT_IN else {"tokenizer": self.tokenizer}

    @property
    def takes_packages(self) -> bool:
        return self.tokenizer not in BUILT_IN

    @model_validator(mode="after")
    def _has_a_stride(self) -> "CausalLm":
        if self.stride is not None and self.windows != "overlapping":
            raise self.misfit("is for windows: overlapping; leave it out", "stride")
        if self.stride is not None and self.stride > self.context:
            fact = f"{self.stride} is more than context, {self.context}: the tokens between are never read"
            raise self.misfit(fact, "stride")
        return self

    @model_validator(mode="after")
    def _width_divides(self) -> "CausalLm":
        if self.width % self.heads:
            fact = f"width {self.width} is not a multiple of heads {self.heads}"
            raise self.misfit(fact, "width", "heads")
        return self
