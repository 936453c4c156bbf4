"""The plan of ``pair_classifier``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from jobs.contract.base import Spec
from jobs.contract.plans.base import CheckpointFields, TrainingPlan, left_out_by_default

PROMPT: Final = "First: {first}\nSecond: {second}\nAnswer:"
"""The text that a pretrained model continues, unless the plan has its own."""

WORDS: Final = (" First", " Second", " Similar")
"""The answers of a pretrained model, unless the plan has its own."""


class Lora(Spec):
    """Low-rank changes of a frozen model's matrices (``peft``); they alone are trained and saved."""

    rank: int = Field(8, ge=1, le=1024, description="Columns of the two small matrices of each change.")
    alpha: float = Field(32, gt=0, description="The change is scaled by alpha / rank.")
    dropout: float = Field(
        0.05, ge=0, lt=1, description="Share of a change's inputs that is dropped in training."
    )
    targets: tuple[str, ...] = Field(
        (), max_length=100, description="Names of the layers that are changed; none: all linear layers."
    )


class PairClassifier(TrainingPlan):
    """A transformer that is shown two molecules and says which one has the higher measured value.

    A row is a *group* of molecules, all of its pairs are judged, each in both orders; one *item* is one pair.
    In ``form: sequence`` a row is a pair.
    """

    implementation: ClassVar = "jobs.workloads.pair_sequence.workload:choose_form"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=("value_column", "length", "form", "pretrained", "prompt", "answers", "folds", "fold"),
        trajectory=(
            "group", "threshold", "similar_weight", "swap_weight_start", "swap_weight_end", "masked",
            "balance", "quantize", "trained_learning_rate",
        ),
        reports=("ranked",),
        shape=("layers", "heads", "width", "lora", "trained"),
    )  # fmt: skip
    switches: ClassVar = frozenset({"conversion", "encode_once", "last_position_only"})
    path_fields: ClassVar[tuple[str, ...]] = ("pretrained",)
    evaluates: ClassVar[tuple[str, ...]] = (
        "eval_loss", "accuracy", "swap_consistency", "swap_disagreement", "ranking_correlation",
        "accuracy_*", "confusion_*",
    )  # fmt: skip
    benchmark: ClassVar[Mapping[str, Any]] = {
        "data": "solubility",
        "steps": 100,
        "batch_size": 32,
        "group": 2,
        "layers": 3,
        "heads": 4,
        "width": 64,
        "eval_every": 50,
        "eval_batches": 16,
        "log_every": 5,
    }

    kind: Literal["pair_classifier"] = "pair_classifier"
    data: str = Field(
        description="CSV file with columns smiles, value and split, or a directory that holds molecules.csv"
        " (form sequence: or labels.txt or pairs.csv), relative to the job file; or the name of a prepared"
        " data set."
    )
    value_column: str = Field("logs", min_length=1, description="Column of the measured value.")
    batch_size: int = Field(
        16, ge=1, le=10**6, description="Groups (form sequence: pairs) in one step, the effective batch."
    )
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
    form: Literal["summaries", "sequence"] = left_out_by_default(
        "summaries",
        description="Compare the summaries of two molecules, or read both in one sequence and answer in a"
        " word of a vocabulary.",
    )
    balance: Literal["none", "classes"] = left_out_by_default(
        "none", description="Train on pairs as they come, or on equally many of each answer; form sequence."
    )
    folds: int | None = left_out_by_default(
        None, ge=2, le=1000, description="Parts of the molecules for cross-validation; null: their split."
    )
    fold: int | None = left_out_by_default(
        None, ge=0, le=999, description="The part that is tested on, from 0; a matrix gives all in turn."
    )
    ranked: int = left_out_by_default(
        0,
        ge=0,
        le=2000,
        description="Test molecules that an evaluation ranks (Bradley-Terry) by all of their pairs; form"
        " sequence.",
    )
    pretrained: str | None = left_out_by_default(
        None,
        description="Directory of a causal language model in the format of Hugging Face, with its tokenizer,"
        " relative to the job file; nothing is downloaded. Null: a model of this plan's layers and width.",
    )
    quantize: Literal["nf4"] | None = left_out_by_default(
        None, description="Keep its frozen weights in 4 bits, on a CUDA device; null: as they are."
    )
    lora: Lora | None = left_out_by_default(
        None, description="Freeze the pretrained model and train small changes; null: train all of it."
    )
    trained: tuple[str, ...] = left_out_by_default(
        (),
        max_length=100,
        description="Patterns of names of the pretrained model's parameters that are trained besides.",
    )
    trained_learning_rate: float | None = left_out_by_default(
        None,
        gt=0,
        description="The peak rate of those parameters; null: learning_rate, as of the changes of lora.",
    )
    prompt: str | None = left_out_by_default(
        None,
        max_length=10_000,
        description='What the pretrained model continues, with {first} and {second}; null: "First: {first}",'
        ' "Second: {second}" and "Answer:" on three lines.',
    )
    answers: tuple[str, str, str] | None = left_out_by_default(
        None,
        description='Its words for first, second and similar; null: " First", " Second" and " Similar".',
    )

    @property
    def takes_packages(self) -> bool:
        return self.pretrained is not None

    @property
    def formats(self) -> frozenset[str]:
        if self.pretrained is None:
            return self.exports
        return self.exports | {"peft" if self.lora is not None else "huggingface"}

    @model_validator(mode="after")
    def _width_divides(self) -> "PairClassifier":
        if self.width % self.heads:
            fact = f"width {self.width} is not a multiple of heads {self.heads}"
            raise self.misfit(fact, "width", "heads")
        return self

    @model_validator(mode="after")
    def _folds_are_complete(self) -> "PairClassifier":
        if (self.folds is None) != (self.fold is None):
            missing = "folds, their number," if self.folds is None else "fold, which one is tested on,"
            raise self.misfit(f"{missing} is missing: give both or none", "fold", "folds")
        if self.folds is not None and self.fold is not None and self.fold >= self.folds:
            last = self.folds - 1
            raise self.misfit(f"the {self.folds} folds have the numbers 0 to {last}", "fold")
        return self

    @model_validator(mode="after")
    def _belongs_to_its_form(self) -> "PairClassifier":
        """Refuse fields without an effect: a user who sets one expects something of it."""
        of_sequence = ("balance", "ranked", "pretrained")
        of_pretrained = ("quantize", "lora", "trained", "trained_learning_rate", "prompt", "answers")
        if self.form != "sequence":
            self._refuse(of_sequence, "has an effect in form: sequence alone; add it")
        else:
            self._refuse(("group",), "has no effect in form: sequence, where a row is one pair; leave it out")
        if self.pretrained is None:
            self._refuse(of_pretrained, "is about a pretrained model; give its directory as pretrained")
        else:
            own = ("layers", "heads", "width", "masked")
            self._refuse(own, "has no effect on a pretrained model; leave it out")
        if self.quantize is not None and self.lora is None:
            raise self.misfit("weights of 4 bits cannot be trained; add lora", "quantize")
        if self.trained and self.export is not None and self.export.format == "peft":
            raise self.misfit("an adapter of peft has no place for them; export a state_dict", "trained")
        if self.trained_learning_rate is not None and not self.trained:
            raise self.misfit("is the rate of trained, which names no parameter", "trained_learning_rate")
        if self.trained and self.lora is None:
            raise self.misfit("without lora all parameters are trained; add lora or leave it out", "trained")
        return self

    @model_validator(mode="after")
    def _shows_both(self) -> "PairClassifier":
        for name in ("{first}", "{second}"):
            if self.prompt is not None and self.prompt.count(name) != 1:
                raise self.misfit(f"must have {name} once", "prompt")
        if self.prompt is not None and self.prompt.index("{first}") > self.prompt.index("{second}"):
            raise self.misfit("must have {first} before {second}", "prompt")
        if self.answers is not None and len(set(self.answers)) != len(self.answers):
            raise self.misfit("must be three different words", "answers")
        return self

    def _refuse(self, names: tuple[str, ...], fact: str) -> None:
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise self.misfit(fact, name)
