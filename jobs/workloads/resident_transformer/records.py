"""Turns annotation records into tensors, makes synthetic ones, and divides them into two sides.

A record is the JSON text of ``jobs.data.annotations``.  A frame, an input or an outcome that a record lacks
is 0 in its tensor, and the mask beside it says so (``NAME_seen``, ``NAME_known``).  Windows shorter than
``candles`` begin with places of no candle.

Shape legend: R rows (annotations), W places of a window, F open-high-low-close-volume, B numbers of an order
book, V numbers of a vector, L levels of pivots.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from jobs.contract.plans.resident_transformer import Annotations, ResidentTransformer
from jobs.data.annotations import ACTIONS, DIRECTIONS, FRAME_SECONDS, Annotation, Sizes
from jobs.data.tables import OHLCV
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import derive
from jobs.workloads.resident_transformer.candles import features_of

USUAL_MOVE: Final = {"1s": 0.0002, "1m": 0.001, "1h": 0.008, "1d": 0.04}
"""Log return of a candle that counts as 1: about one standard deviation of a liquid coin."""

EXTREME: Final = 10.0
"""Deviations at which a number of the order book, an indicator or a position is cut."""

VECTORS: Final = ("technical", "position")

OUTCOMES: Final = ("price", "angle", "steepness")
"""Outcomes that are one number each."""


def sizes_of(asked: Annotations) -> Sizes:
    """Return the parts that the reader takes from each annotation."""
    return Sizes(
        tuple(frame for frame in FRAME_SECONDS if frame in asked.frames),
        asked.candles,
        asked.order_book,
        asked.technical,
        asked.position,
        asked.pivots,
        asked.labels == "candle",
    )


@dataclass(frozen=True, slots=True)
class Sides:
    """Training records and later held-out records; ``purged`` ones overlap with the held-out ones."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    purged: int


def split(found: Sequence[Annotation], plan: ResidentTransformer, share: float) -> Sides:
    """Return the two sides: every outcome that is trained on was known before the first held-out annotation.

    Raises:
        InvalidSpec: there are too few annotations for a batch, or for an evaluation.
    """
    count = max(1, round(len(found) * share))
    later = found[len(found) - count :]
    earlier = [one for one in found[: len(found) - count] if one.known <= later[0].at]
    if len(earlier) < plan.batch_size or len(later) < plan.eval_batches:
        raise InvalidSpec(
            f"data: {len(found)} annotations leave {len(earlier)} to train on and {len(later)} held out;"
            f" a batch takes {plan.batch_size}, an evaluation at least {plan.eval_batches};"
            " lower batch_size or eval_batches, or give more annotations"
        )
    purged = len(found) - count - len(earlier)
    return Sides(tuple(one.record for one in earlier), tuple(one.record for one in later), purged)


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts records to tensors; scales the inputs other than candles by the training records."""

    sizes: Sizes
    scale: dict[str, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, sizes: Sizes, train: Sequence[str]) -> "Converter":
        """Return the converter of a training: means and deviations come from its own records."""
        loaded = [json.loads(record) for record in train]
        books = [snapshot for record in loaded for snapshot in record["order_book"] or ()]
        rows = {"order_book": books} | {
            name: [record[name] for record in loaded if record[name] is not None] for name in VECTORS
        }
        return cls(sizes, {name: _moments(each) for name, each in rows.items() if each})

    def __call__(self, records: Sequence[str]) -> Batch:
        """Return the tensors of some records, float32 but for masks and class numbers."""
        rows = [self._row(json.loads(record)) for record in records]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _row(self, record: dict[str, Any]) -> Batch:
        batch: Batch = {}
        for frame in self.sizes.frames:
            given = record["frames"].get(frame, [])
            values_WF = torch.tensor(given, dtype=torch.float64).reshape(-1, len(OHLCV))
            window_WF = features_of(values_WF, USUAL_MOVE[frame]) if given else values_WF.float()
            batch |= self._padded(frame, window_WF)
        if self.sizes.order_book is not None:
            book_WB = self._scaled("order_book", record["order_book"] or [], self.sizes.order_book)
            batch |= self._padded("order_book", book_WB)
        for name in VECTORS:
            count = getattr(self.sizes, name)
            if count is not None:
                given = [] if record[name] is None else [record[name]]
                batch[name] = self._scaled(name, given, count).sum(0)
                batch[f"{name}_seen"] = torch.tensor(bool(given))
        return batch | _targets(record)

    def _padded(self, name: str, window_WX: Tensor) -> Batch:
        missing = self.sizes.candles - len(window_WX)
        seen_W = torch.arange(self.sizes.candles) >= missing
        return {
            name: torch.cat([torch.zeros(missing, window_WX.shape[1]), window_WX]),
            f"{name}_seen": seen_W,
        }

    def _scaled(self, name: str, rows: list[list[float]], count: int) -> Tensor:
        values = torch.tensor(rows, dtype=torch.float64).reshape(-1, count)
        if name not in self.scale:  # no training record has it
            return torch.zeros(len(values), count)
        mean, deviation = self.scale[name]
        return ((values - mean) / deviation).clamp(-EXTREME, EXTREME).float()


def _moments(rows: list[list[float]]) -> tuple[Tensor, Tensor]:
    values = torch.tensor(rows, dtype=torch.float64)
    deviation = values.std(0) if len(values) > 1 else torch.ones(values.shape[1], dtype=torch.float64)
    return values.mean(0), torch.where(deviation > 0, deviation, 1.0)


def _targets(record: dict[str, Any]) -> Batch:
    batch: Batch = {"action": torch.tensor(ACTIONS.index(record["action"]))}
    for name in OUTCOMES:
        batch |= _outcome(name, record[name])
    direction = record["direction"]
    batch["direction"] = torch.tensor(0 if direction is None else direction)
    batch["direction_known"] = torch.tensor(direction is not None)
    pivots = record["pivots"]
    batch["pivots"] = torch.tensor([0.0 if one is None else one for one in pivots])
    batch["pivots_known"] = torch.tensor([one is not None for one in pivots])
    return batch


def _outcome(name: str, value: float | None) -> Batch:
    return {
        name: torch.tensor(0.0 if value is None else value),
        f"{name}_known": torch.tensor(value is not None),
    }


# --- Synthetic annotations


def synthetic_annotations(plan: ResidentTransformer, sizes: Sizes, seed: int) -> tuple[Annotation, ...]:
    """Return synthetic annotations: the price goes on as it went, and every fifth lacks the seconds.

    The drift of the candles before an annotation decides its action and, with noise, what comes after it.
    """
    draw = random.Random(derive(seed, "synthetic-annotations"))  # noqa: S311 - examples, no secrets
    return tuple(_synthetic(number, sizes, draw) for number in range(plan.synthetic_annotations))


def _synthetic(number: int, sizes: Sizes, draw: random.Random) -> Annotation:
    drift = (-1, 0, 1)[number % 3] * draw.uniform(0.4, 0.6)
    frames = {
        frame: _walk(drift, USUAL_MOVE[frame], sizes.candles, draw)
        for frame in sizes.frames
        if frame != "1s" or number % 5 != 4 or sizes.frames == ("1s",)
    }
    price = drift + draw.gauss(0, 0.05)
    direction = 1 if abs(drift) < FLAT_DRIFT else 2 if drift > 0 else 0
    book = [[drift + draw.gauss(0, 1) for _ in range(sizes.order_book or 0)] for _ in range(sizes.candles)]
    record = {
        "action": ACTIONS[0] if direction == DIRECTIONS.index("flat") else ACTIONS[1 if drift > 0 else 2],
        "frames": frames,
        "order_book": book if sizes.order_book else None,
        "technical": [drift + draw.gauss(0, 1) for _ in range(sizes.technical)] if sizes.technical else None,
        "position": [draw.random() for _ in range(sizes.position)] if sizes.position else None,
        "price": price,
        "angle": math.atan(price) / (math.pi / 2),
        "steepness": math.log1p(abs(price)),
        "direction": direction,
        "pivots": [price * (level + 1) / sizes.pivots for level in range(sizes.pivots)],
    }
    at = 1_735_689_600.0 + 7200.0 * number
    return Annotation(Path("synthetic"), at, at + 3600.0, json.dumps(record))


FLAT_DRIFT: Final = 0.1


def _walk(drift: float, move: float, candles: int, draw: random.Random) -> list[list[float]]:
    close, rows = 3000.0, []
    for _ in range(candles):
        opened = close
        close *= math.exp(move * (drift + draw.gauss(0, 0.5)))
        high, low = max(opened, close) * (1 + move / 4), min(opened, close) * (1 - move / 4)
        rows.append([opened, high, low, close, draw.uniform(1, 3)])
    return rows
