"""Predicts action, price, trend and pivots from annotation files, on a fixed list of batches.

The workload follows gogo2: a few annotations made by hand, with candles of seconds, minutes, hours and days,
the order book, technical indicators and the open position; any frame may be missing.  One encoder reads the
candles of all frames, and transformer blocks look at all of them; masks hide what an annotation lacks.
Heads: the action (hold, buy, sell), the price at the exit in percent, the trend (angle, steepness, direction)
and the next pivots.  An outcome that is not known costs nothing.

Shape legend: R rows (annotations), W places of a window, P positions of pooled places, C width, A actions,
L levels of pivots.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract.plans.resident_transformer import SYNTHETIC_ANNOTATIONS, Annotations, ResidentTransformer
from jobs.data.annotations import ACTIONS, DIRECTIONS, Annotation, Sizes, read_annotations
from jobs.data.tables import OHLCV
from jobs.training.batches import Batch
from jobs.training.randomness import seed_all
from jobs.training.report import say, warn
from jobs.workloads.common.encoder import EncoderBlock, initialise, tell_recomputing, through
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.protocol import BuildContext, Evaluation
from jobs.workloads.resident_transformer.batch_list import batch_list
from jobs.workloads.resident_transformer.records import (
    OUTCOMES,
    VECTORS,
    Converter,
    Sides,
    sizes_of,
    split,
    synthetic_annotations,
)

DEGREES: Final = 90.0
"""An angle of 1 in degrees."""


class AnnotationNetwork(nn.Module):
    """One encoder for the candles of all frames, one for the order book, then attention across everything."""

    def __init__(self, plan: ResidentTransformer, sizes: Sizes, *, recompute: bool) -> None:
        super().__init__()
        self.pool, self.sizes, self.recompute = plan.pool, sizes, recompute
        self.windows = (*sizes.frames, *(("order_book",) if sizes.order_book else ()))
        self.vectors = tuple(name for name in VECTORS if getattr(sizes, name) is not None)
        self.candles = _pooled(plan.pool * len(OHLCV), plan.width)
        if sizes.order_book:
            self.book = _pooled(plan.pool * sizes.order_book, plan.width)
        self.vector = nn.ModuleList(nn.Linear(getattr(sizes, name), plan.width) for name in self.vectors)
        self.kind = nn.Embedding(len(self.windows) + len(self.vectors) + 1, plan.width)
        self.position = nn.Embedding(sizes.candles // plan.pool, plan.width)
        self.blocks = nn.ModuleList(
            EncoderBlock(plan.width, plan.heads, plan.dropout) for _ in range(plan.layers - 1)
        )
        self.last = EncoderBlock(plan.width, plan.heads, plan.dropout)
        self.norm = nn.LayerNorm(plan.width)
        self.outputs = {
            "action": len(ACTIONS),
            **dict.fromkeys(OUTCOMES, 1),
            "direction": len(DIRECTIONS),
            "pivots": sizes.pivots,
        }
        self.head = nn.Linear(plan.width, sum(self.outputs.values()))
        self.apply(initialise)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the answers of the heads by name, (R, their size)."""
        parts, seen = [], []
        for number, name in enumerate(self.windows):
            parts.append(self._window(name, batch[name]) + self.kind.weight[number])
            seen.append(batch[f"{name}_seen"].unflatten(1, (-1, self.pool)).any(2))
        for number, (name, lift) in enumerate(zip(self.vectors, self.vector, strict=True), len(self.windows)):
            parts.append((lift(batch[name]) + self.kind.weight[number])[:, None])
            seen.append(batch[f"{name}_seen"][:, None])
        rows = len(parts[0])
        parts.append(self.kind.weight[-1].expand(rows, 1, -1))  # the last position is the query
        seen.append(torch.ones(rows, 1, dtype=torch.bool, device=parts[0].device))
        x_RPC, seen_RP = torch.cat(parts, dim=1), torch.cat(seen, dim=1)
        x_RPC = through(self.blocks, x_RPC, seen_RP, recompute=self.recompute)
        answer_RC = self.norm(self.last(x_RPC, seen_RP, last_only=True)).squeeze(1)
        found = self.head(answer_RC).float().split(list(self.outputs.values()), dim=1)
        return dict(zip(self.outputs, found, strict=True))

    def _window(self, name: str, window_RWX: Tensor) -> Tensor:
        encoder = self.book if name == "order_book" else self.candles
        pooled_RPC: Tensor = encoder(window_RWX.unflatten(1, (-1, self.pool)).flatten(2))
        return pooled_RPC + self.position.weight


def _pooled(numbers: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(numbers, width), nn.GELU(), nn.Linear(width, width))


class AnnotatedTransformer(TrainedWorkload[ResidentTransformer, AnnotationNetwork]):
    """The workload: annotations, model and loss of one spec."""

    item = "annotation"

    def __init__(self, plan: ResidentTransformer, asked: Annotations, setting: BuildContext) -> None:
        self.plan, self._asked = plan, asked
        self._sizes = sizes_of(asked)
        found = _found(plan, self._sizes, setting.seed)
        self._synthetic = plan.data == SYNTHETIC_ANNOTATIONS
        self._corpus = _sha256(found)
        sides = split(found, plan, asked.held_out)
        converter = Converter.of(self._sizes, sides.train)
        train = converter(sides.train)
        self._usual = _usual(train)
        once = setting.switches.profile.conversion == "once"
        self.source = batch_list(
            sides.train, sides.held_out, converter, train if once else None, plan, setting.seed
        )
        setting.switches.applied("conversion", verified=True, note="annotations from JSON text to tensors")
        tell_recomputing(setting.switches, plan.layers)
        seed_all(setting.seed, "weights")
        recompute = setting.switches.profile.activation_checkpointing
        self.model = AnnotationNetwork(plan, self._sizes, recompute=recompute)
        say(_summary(sides, train, self._sizes))

    @property
    def train_items(self) -> int:
        return len(self.source.train) * self.plan.batch_size

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan, asked = self.plan, self._asked.model_dump(mode="json")
        weights = (asked.pop("trend_weight"), asked.pop("pivot_weight"))
        return {
            MODEL: model_signature(self.model, plan.kind, asked, plan.pool, plan.heads),
            CORPUS: self._corpus,
            SCHEDULE: schedule_signature(plan, plan.price_weight, plan.dropout, *weights),
        }

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum over rows of the weighted losses of all heads."""
        losses = _losses(self.model(batch), batch)
        weights = self._weights()
        total = losses["action"]
        for name, weight in weights.items():
            total = total + weight * losses[name]
        return total

    def _weights(self) -> dict[str, float]:
        trend = self._asked.trend_weight
        return {
            "price": self.plan.price_weight,
            "angle": trend,
            "steepness": trend,
            "direction": trend,
            "pivots": self._asked.pivot_weight,
        }

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        answers = self.model(batch)
        usual = {
            name: value.to(batch["action"].device).expand_as(answers[name])
            for name, value in self._usual.items()
        }
        sums: dict[str, Tensor] = {"count": torch.tensor(self.count(batch))}
        for name in ("direction", *OUTCOMES, "pivots"):
            sums[f"known {name}"] = batch[f"{name}_known"].sum()
        for number, name in enumerate(ACTIONS):
            sums[name] = (batch["action"] == number).sum()
        for who, given in (("model", answers), ("usual", usual)):
            sums |= {f"{who} {name}": loss for name, loss in _losses(given, batch).items()}
            sums |= {f"{who} {name}": error for name, error in _errors(given, batch).items()}
        return sums

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        metrics, usual = self._means("model", sums), self._means("usual", sums)
        usual["action_accuracy"] = max(sums[name] for name in ACTIONS) / sums["count"]
        if self._synthetic:
            metrics["synthetic_data"] = 1.0
        return Evaluation(metrics, usual, "eval_loss")

    def _means(self, who: str, sums: Mapping[str, float]) -> dict[str, float]:
        rows = sums["count"]
        weighted = sum(weight * sums[f"{who} {name}"] for name, weight in self._weights().items())
        known = {name: sums[f"known {name}"] for name in ("direction", *OUTCOMES, "pivots")}
        means = {
            "eval_loss": (sums[f"{who} action"] + weighted) / rows,
            "action_loss": sums[f"{who} action"] / rows,
            "action_accuracy": sums[f"{who} right action"] / rows,
        }
        errors = {
            "price_error": ("price error", "price"),
            "angle_error_degrees": ("angle error", "angle"),
            "steepness_error": ("steepness error", "steepness"),
            "direction_accuracy": ("right direction", "direction"),
            "pivot_error": ("pivots error", "pivots"),
        }
        return means | {
            metric: sums[f"{who} {name}"] / known[of] for metric, (name, of) in errors.items() if known[of]
        }


def _found(plan: ResidentTransformer, sizes: Sizes, seed: int) -> tuple[Annotation, ...]:
    if plan.data != SYNTHETIC_ANNOTATIONS:
        found = read_annotations(Path(plan.data), sizes, plan.clean)
        if later := sum(one.later for one in found):
            held = sum(one.later > 0 for one in found)
            warn(f"{later} candles of {held} annotations begin after their annotation and are left out")
        return found
    warn(f"SYNTHETIC DATA: {plan.synthetic_annotations} made-up annotations")
    return synthetic_annotations(plan, sizes, seed)


def _losses(answers: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return the sum over rows of the loss of each head; what is not known costs nothing."""
    losses = {"action": F.cross_entropy(answers["action"], batch["action"], reduction="sum")}
    direction_R = F.cross_entropy(answers["direction"], batch["direction"], reduction="none")
    losses["direction"] = (direction_R * batch["direction_known"]).sum()
    for name in OUTCOMES:
        error_R = F.smooth_l1_loss(answers[name].squeeze(1), batch[name], reduction="none")
        losses[name] = (error_R * batch[f"{name}_known"]).sum()
    error_RL = F.smooth_l1_loss(answers["pivots"], batch["pivots"], reduction="none")
    losses["pivots"] = (error_RL * batch["pivots_known"]).mean(1).sum()
    return losses


def _errors(answers: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Return sums of right answers and of absolute errors over what is known."""
    right_R = answers["direction"].argmax(1) == batch["direction"]
    sums = {
        "right action": (answers["action"].argmax(1) == batch["action"]).sum(),
        "right direction": (right_R & batch["direction_known"]).sum(),
    }
    for name in OUTCOMES:
        error_R = (answers[name].squeeze(1) - batch[name]).abs() * batch[f"{name}_known"]
        sums[f"{name} error"] = error_R.sum() * (DEGREES if name == "angle" else 1)
    sums["pivots error"] = ((answers["pivots"] - batch["pivots"]).abs() * batch["pivots_known"]).sum()
    return sums


def _usual(train: Batch) -> dict[str, Tensor]:
    """Return the constant answers of the trivial predictor: frequencies as logits, and medians."""
    answers = {
        "action": _log_shares(train["action"], len(ACTIONS)),
        "direction": _log_shares(train["direction"][train["direction_known"]], len(DIRECTIONS)),
    }
    for name in OUTCOMES:
        answers[name] = _median(train[name], train[f"{name}_known"])[None]
    pivots = zip(train["pivots"].unbind(1), train["pivots_known"].unbind(1), strict=True)
    return answers | {"pivots": torch.stack([_median(*each) for each in pivots])}


def _log_shares(class_R: Tensor, classes: int) -> Tensor:
    """Return the logarithms of smoothed shares; none is 0, so every cross-entropy is finite."""
    count = torch.bincount(class_R, minlength=classes).float() + 1
    return (count / count.sum()).log()


def _median(value_R: Tensor, known_R: Tensor) -> Tensor:
    return value_R[known_R].median() if known_R.any() else torch.zeros(())


def _summary(sides: Sides, train: Batch, sizes: Sizes) -> str:
    """Return a one-line summary of the data."""
    shares = (
        f"{frame} in {float(train[f'{frame}_seen'].any(1).float().mean()):.0%}" for frame in sizes.frames
    )
    purged = f", {sides.purged} left out because their outcome reaches into them" if sides.purged else ""
    return (
        f"data: {len(sides.train)} annotations to train on, {len(sides.held_out)} later ones held out"
        f"{purged}; candles of {', '.join(shares)} of them"
    )


def _sha256(found: tuple[Annotation, ...]) -> str:
    digest = hashlib.sha256()
    for one in found:
        digest.update(f"{one.at!r} {one.known!r} {one.record}\n".encode())
    return digest.hexdigest()
