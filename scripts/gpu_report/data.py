"""Data sets like those of the tests, in two sizes, and the workload plans that train on them.

Nothing has to be downloaded.  The data say nothing about real sensors, molecules or markets.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from jobs.contract import STDLIB
from scripts.gpu_report.context import CannotMeasureHere, Context
from tests.fakes.workloads.small_sets import candles, molecules, recordings, small_plan

KINDS: Final = ("causal_lm", "imu_stream", "graph_forecast", "resident_transformer", "pair_classifier")

REAL: Final[Mapping[str, Mapping[str, Any]]] = {
    "causal_lm": {"batch_size": 32, "context": 512, "layers": 8, "heads": 8, "width": 512},
    "imu_stream": {"batch_size": 512, "stride": 25, "hidden": 256, "layers": 2, "eval_batches": 4},
    "graph_forecast": {
        "data": "synthetic-stocks",
        "synthetic_assets": 128,
        "synthetic_days": 600,
        "window": 60,
        "scales": (2, 5, 10, 20, 30, 40, 50, 60),
        "neighbours": 10,
        "hidden": 256,
        "heads": 8,
        "batch_size": 8,
        "eval_batches": 4,
    },
    "resident_transformer": {
        "batch_size": 256,
        "days": 300,
        "weeks": 120,
        "months": 60,
        "pool": 10,
        "layers": 4,
        "heads": 8,
        "width": 256,
        "eval_batches": 4,
    },
    "pair_classifier": {
        "batch_size": 32,
        "group": 4,
        "length": 96,
        "layers": 8,
        "heads": 8,
        "width": 512,
        "eval_batches": 4,
    },
}

_MAKERS: Final[Mapping[str, Callable[[Path], None]]] = {
    "imu_stream": partial(recordings, count=160, frames=3000),
    "pair_classifier": partial(molecules, carbons=40, oxygens=32),
    "resident_transformer": partial(candles, days=2000),
}


def plan_of(kind: str, context: Context, /, **more: Any) -> dict[str, Any]:
    """Return the fields of a workload plan; create its data set on first use."""
    place = context.directory / "data" / kind
    if context.sized(real=False, tiny=True):
        return _small(kind, place) | more
    chosen: dict[str, Any] = {"kind": kind, "data": STDLIB, "warmup_steps": 4, **REAL[kind]}
    if kind in _MAKERS:
        if not place.exists():
            place.mkdir(parents=True)
            _MAKERS[kind](place)
        chosen["data"] = str(place)
    return chosen | more


_small = cache(small_plan)
"""A plan of the size of the tests, made once for each place."""


def language_model(context: Context) -> Path:
    """Return the directory of a causal language model with random weights, made on first use: 1.1 B.

    Raises:
        CannotMeasureHere: A package is missing.
    """
    place = context.directory / "data" / "language-model"
    if place.exists():
        return place
    try:
        import peft  # noqa: F401 - asked for, so that it is missed here and not by a job
        import torch
        import transformers
        from tokenizers import Tokenizer, models, pre_tokenizers
    except ImportError as error:
        raise CannotMeasureHere(f"the package {error.name} is missing") from error
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: number for number, token in enumerate(["<s>", "<unk>", *letters, *WORDS])}
    whole = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>", ignore_merges=True))  # noqa: S106
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole,
        bos_token="<s>",  # noqa: S106
        unk_token="<unk>",  # noqa: S106
    )
    config = transformers.LlamaConfig(**context.sized(LLAMA, TINY_LLAMA))
    with torch.device("cuda" if context.accelerator == "cuda" else "cpu"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


WORDS: Final = ("ĠFirst", "ĠSecond", "ĠSimilar")

LLAMA: Final = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip
"""The sizes of a Llama of 1.1 billion parameters."""

TINY_LLAMA: Final = {
    "vocab_size": 512, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip
