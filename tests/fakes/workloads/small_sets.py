"""A small set of examples for each built-in workload, made by formula, and a plan trained in a second.

What is made can be learnt: a correct training beats the trivial baseline of its workload within a few
hundred steps, and needs nothing that somebody must download.
"""
# ruff: noqa: N806 - arrays carry their shape

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from jobs.contract import WORKLOADS, kind_of
from tests.fakes.workloads.annotations import annotation_directory
from tests.fakes.workloads.panels import panel_directory

_SMALL: Final[Mapping[str, Mapping[str, Any]]] = {
    "causal_lm": {"batch_size": 3, "context": 16, "layers": 1, "heads": 2, "width": 16, "dropout": 0.2},
    "graph_forecast": {
        "batch_size": 4,
        "window": 6,
        "scales": (5, 20),
        "horizons": (1, 5),
        "lookback": 20,
        "neighbours": 2,
        "hidden": 8,
        "heads": 2,
        "layers": 1,
        "dropout": 0.2,
    },
    "imu_stream": {
        "batch_size": 12,
        "window": 20,
        "hidden": 8,
        "shards": 2,
        "held_out": 0.34,
        "dropout": 0.2,
    },
    "pair_classifier": {"batch_size": 4, "group": 3, "layers": 2, "heads": 2, "width": 16, "length": 16},
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
        "dropout": 0.2,
    },
}

_BODY: Final[Mapping[str, Any]] = {
    "kind": "imu_stream",
    "data": "synthetic-imu",
    "synthetic_sequences": 9,
    "synthetic_frames": 50,
    "batch_size": 12,
    "window": 20,
    "hidden": 8,
    "layers": 1,
    "shards": 2,
    "held_out": 0.34,
    "dropout": 0.2,
}

_PANEL: Final[Mapping[str, Any]] = {
    "kind": "graph_forecast",
    **_SMALL["graph_forecast"],
    "panel": {"features": ["feat_*"], "nodes": 5},
}

VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "imu_stream joints": {**_BODY, "module": "joints"},
    "imu_stream poser": {**_BODY, "module": "poser", "bidirectional": True},
    "imu_stream poser 16": {**_BODY, "module": "poser", "pose_joints": 16},
    "imu_stream foot_contact": {**_BODY, "module": "foot_contact"},
    "imu_stream velocity": {**_BODY, "module": "velocity"},
    "graph_forecast panel": {**_PANEL, "loss": "quantile"},
    "graph_forecast fan": {**_PANEL, "loss": "student_t", "variable_selection": True, "frequencies": 2},
    "causal_lm characters": {
        **_SMALL["causal_lm"],
        "kind": "causal_lm",
        "tokenizer": "characters",
        "windows": "overlapping",
        "stride": 8,
        "samples": 1,
        "sample_tokens": 4,
    },
    "pair_classifier sequence": {
        **_SMALL["pair_classifier"],
        "kind": "pair_classifier",
        "form": "sequence",
        "group": 4,
        "balance": "classes",
        "folds": 3,
        "fold": 1,
        "ranked": 4,
    },
    "pair_classifier lora": {
        "kind": "pair_classifier",
        "batch_size": 4,
        "length": 16,
        "form": "sequence",
        "lora": {"rank": 2, "dropout": 0.2},
    },
    "resident_transformer annotations": {
        **_SMALL["resident_transformer"],
        "kind": "resident_transformer",
        "annotations": {"candles": 8, "order_book": 6, "technical": 3, "position": 2},
    },
}
"""Other tasks of a workload, by name: the fields of a plan that trains in a second.

Their data are synthetic, or made by ``_VARIANT_SETS``.
"""

KINDS: Final = tuple(kind_of(plan) for plan in WORKLOADS)
"""Every registered workload; one without a small set fails wherever workloads are killed and resumed."""


def small_plan(kind: str, directory: Path) -> dict[str, Any]:
    """Return the fields of a workload or variant that trains on a small set, made in ``directory``."""
    if kind in VARIANTS:
        return {**_examples(kind, directory), "warmup_steps": 4, "eval_batches": 2}
    examples = {"data": str(small_set(kind, directory))}
    return {"kind": kind, **_SMALL[kind], **examples, "warmup_steps": 4, "eval_batches": 2}


def _examples(variant: str, directory: Path) -> dict[str, Any]:
    """Return the fields of a variant with what it reads, which is made if it is not made up."""
    fields, made = VARIANTS[variant], {}
    if variant in _VARIANT_SETS:
        made = {"data": str(_made(_VARIANT_SETS[variant], directory))}
    elif "data" not in fields:
        made = {"data": str(small_set(fields["kind"], directory))}
    if "lora" in fields:
        from tests.fakes.workloads.language_models import tiny_llama

        made["pretrained"] = str(tiny_llama(directory / "model"))
    return {**fields, **made}


def small_set(kind: str, directory: Path) -> Path:
    """Fill a new directory with examples for a workload, readable by all, and return it."""
    return _made(_MAKERS[kind], directory)


def _made(make: Callable[[Path], None], directory: Path) -> Path:
    directory.mkdir(parents=True)
    make(directory)
    return directory


def _sources(directory: Path) -> None:
    """A few real files, copied so that nothing but the seed decides what is in them."""
    for path in sorted(Path(json.__file__).parent.glob("*.py")):
        shutil.copy(path, directory)


def _stocks(directory: Path) -> None:
    """Five prices whose movements come in spells, which all of them share."""
    draw = random.Random(0)  # noqa: S311 - examples, no secrets
    size, prices, rows = 0.0, [100.0] * 5, ["date,A,B,C,D,E"]
    for day in _weekdays(600):
        size = 0.97 * size + draw.gauss(0, 0.25)
        common = draw.gauss(0, 1)
        prices = [p * math.exp(0.01 * math.exp(size) * (common + draw.gauss(0, 1)) / 2) for p in prices]
        rows.append(",".join([str(day), *map(repr, prices)]))
    _write(directory / "prices.csv", rows)


def recordings(directory: Path, count: int = 9, frames: int = 160) -> None:
    """Recordings of three people who swing an arm, each in a rhythm of their own."""
    noise = np.random.default_rng(0)
    (directory / "recordings").mkdir()
    rows = ["file,subject,activity"]
    for number in range(count):
        time_T = np.arange(frames + 20 * (number % 9)) / 50.0
        angle_T = 0.8 * np.sin(2 * math.pi * (0.5 + 0.2 * (number % 3)) * time_T)
        still_T = np.zeros_like(time_T)
        axes = [np.sin(angle_T), still_T, np.cos(angle_T), still_T, np.gradient(angle_T, 0.02), still_T]
        signal_T6 = np.stack(axes, axis=1) + 0.02 * noise.standard_normal((len(time_T), 6))
        np.save(directory / f"recordings/{number}.npy", signal_T6.astype(np.float32))
        rows.append(f"recordings/{number}.npy,{'abc'[3 * number // count]},swing")
    _write(directory / "index.csv", rows)


def molecules(directory: Path, carbons: int = 11, oxygens: int = 3) -> None:
    """Chains of carbon and oxygen: the more carbon, the less soluble."""
    rows = ["smiles,logs,split"]
    for c in range(1, carbons + 1):
        for o in range(oxygens):
            split = "test" if (c + o) % 4 == 0 else "train"
            rows.append(f"{'C' * c}{'O' * o},{o - 0.7 * c},{split}")
    _write(directory / "molecules.csv", rows)


def candles(directory: Path, days: int = 700) -> None:
    """Two indices that rise and fall in waves of some weeks."""
    for number, name in enumerate(("one", "two")):
        draw, close, rows = random.Random(number), 100.0, ["date,open,high,low,close,volume"]  # noqa: S311
        for place, day in enumerate(_weekdays(days)):
            opened = close
            close *= math.exp(0.01 * math.sin(place / 5) + draw.gauss(0, 0.003))
            high, low = 1.002 * max(opened, close), 0.998 * min(opened, close)
            rows.append(
                ",".join([str(day), *map(repr, (opened, high, low, close, 1e6 + 1e5 * draw.random()))])
            )
        _write(directory / f"{name}.csv", rows)


def _weekdays(count: int) -> list[date]:
    days = (date(2001, 1, 1) + timedelta(days=number) for number in range(2 * count))
    return [day for day in days if day.weekday() < 5][:count]


def _write(file: Path, rows: list[str]) -> None:
    file.write_text("\n".join(rows) + "\n")


_MAKERS: Final[Mapping[str, Callable[[Path], None]]] = {
    "causal_lm": _sources,
    "graph_forecast": _stocks,
    "imu_stream": recordings,
    "pair_classifier": molecules,
    "resident_transformer": candles,
}

_VARIANT_SETS: Final[Mapping[str, Callable[[Path], None]]] = {
    "graph_forecast panel": panel_directory,
    "graph_forecast fan": panel_directory,
    "resident_transformer annotations": annotation_directory,
}
