"""Synthetic data sets in two sizes, and the workload plans that train on them.

Nothing has to be downloaded.  The data say nothing about real sensors, molecules or markets.
"""
# ruff: noqa: N806 - arrays carry their shape

import math
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from jobs.contract import STDLIB
from scripts.gpu_report.context import CannotMeasureHere, Context

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

TINY: Final[Mapping[str, Mapping[str, Any]]] = {
    "causal_lm": {
        "include": ("a*.py",),
        "batch_size": 2,
        "context": 16,
        "layers": 1,
        "heads": 2,
        "width": 16,
    },
    "imu_stream": {"batch_size": 12, "window": 20, "hidden": 8, "shards": 2, "eval_batches": 1},
    "graph_forecast": {
        "data": "synthetic-stocks",
        "synthetic_assets": 5,
        "synthetic_days": 400,
        "window": 6,
        "scales": (5, 20),
        "horizons": (1, 5),
        "lookback": 20,
        "neighbours": 2,
        "hidden": 8,
        "heads": 2,
        "layers": 1,
        "batch_size": 4,
        "eval_batches": 1,
    },
    "resident_transformer": {
        "days": 8,
        "weeks": 4,
        "months": 2,
        "pool": 2,
        "every": 2,
        "horizon": 2,
        "batch_size": 8,
        "width": 8,
        "heads": 2,
        "layers": 2,
        "eval_batches": 1,
    },
    "pair_classifier": {"batch_size": 4, "group": 3, "layers": 2, "heads": 2, "width": 16, "length": 16},
}


def plan_of(kind: str, context: Context, /, **more: Any) -> dict[str, Any]:
    """Return the fields of a workload plan; create its data set on first use."""
    chosen = {"kind": kind, **context.sized(REAL, TINY)[kind]}
    if kind in _MAKERS:
        place = context.directory / "data" / kind
        if not place.exists():
            place.mkdir(parents=True)
            _MAKERS[kind](place, context)
        chosen["data"] = str(place)
    return {"data": STDLIB, "warmup_steps": 4, **chosen, **more}


def _recordings(directory: Path, context: Context) -> None:
    """Write recordings of a swinging arm, with several frequencies."""
    count, frames = context.sized((160, 3000), (9, 160))
    noise = np.random.default_rng(0)
    (directory / "recordings").mkdir()
    rows = ["file,subject,activity"]
    for number in range(count):
        time_T = np.arange(frames + 20 * (number % 9)) / 50.0
        angle_T = 0.8 * np.sin(2 * math.pi * (0.5 + 0.2 * (number % 7)) * time_T)
        still_T = np.zeros_like(time_T)
        axes = [np.sin(angle_T), still_T, np.cos(angle_T), still_T, np.gradient(angle_T, 0.02), still_T]
        signal_T6 = np.stack(axes, axis=1) + 0.02 * noise.standard_normal((len(time_T), 6))
        np.save(directory / f"recordings/{number}.npy", signal_T6.astype(np.float32))
        rows.append(f"recordings/{number}.npy,person {number % 10 if count > 9 else number // 3},swing")
    _write(directory / "index.csv", rows)


def _molecules(directory: Path, context: Context) -> None:
    """Write chain molecules whose solubility falls with the number of carbon atoms."""
    carbons, oxygens, nitrogens = context.sized((40, 8, 4), (11, 3, 1))
    rows = ["smiles,logs,split"]
    for c in range(1, carbons + 1):
        for o in range(oxygens):
            for n in range(nitrogens):
                split = "test" if (c + o + n) % 4 == 0 else "train"
                rows.append(f"{'C' * c}{'O' * o}{'N' * n},{o + 0.5 * n - 0.7 * c},{split}")
    _write(directory / "molecules.csv", rows)


def _candles(directory: Path, context: Context) -> None:
    """Write price indices with a period of some weeks."""
    tables, days = context.sized((2, 2000), (2, 700))
    for number in range(tables):
        draw, close, rows = np.random.default_rng(number), 100.0, ["date,open,high,low,close,volume"]
        for place, day in enumerate(_weekdays(days)):
            opened = close
            close *= math.exp(0.01 * math.sin(place / 5) + float(draw.normal(0, 0.003)))
            high, low = 1.002 * max(opened, close), 0.998 * min(opened, close)
            volume = 1e6 + 1e5 * float(draw.random())
            rows.append(",".join([str(day), *map(repr, (opened, high, low, close, volume))]))
        _write(directory / f"index{number}.csv", rows)


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


def _weekdays(count: int) -> list[date]:
    days = (date(2001, 1, 1) + timedelta(days=number) for number in range(2 * count))
    return [day for day in days if day.weekday() < 5][:count]


def _write(file: Path, rows: list[str]) -> None:
    file.write_text("\n".join(rows) + "\n")


_MAKERS: Final[Mapping[str, Callable[[Path, Context], None]]] = {
    "imu_stream": _recordings,
    "pair_classifier": _molecules,
    "resident_transformer": _candles,
}
