"""Predicts an action and the next candle from candles of several timeframes, on a fixed list of batches.

The workload follows gogo2, a trading transformer with hand-made annotations, one batch each, that are
reused in every epoch.  gogo2 cloned every tensor per epoch and moved it to the device per step; keeping
the batches on the device avoids this.  As a consequence, a step that writes into its batch corrupts all
later epochs.  The gain depends on the device, and there is none on a CPU.  Converting records to tensors
more than once is expensive on every device.

The data are public prices; the trained model is an example, not financial advice.

Shape legend: R rows (annotations), W candles of a window, F open-high-low-close-volume, P positions of
pooled candles, C width, A actions.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.data.tables import SUFFIXES, Ohlcv, read_ohlcv
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.workloads.common.encoder import EncoderBlock, initialise, tell_recomputing, through
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.protocol import BuildContext, Evaluation, Workload
from jobs.workloads.resident_transformer.batch_list import batch_list
from jobs.workloads.resident_transformer.candles import ACTIONS, TIMEFRAMES, annotate, convert

FIELDS: Final = 5
"""Open, high, low, close, volume."""


def read_tables(path: Path) -> tuple[tuple[str, Ohlcv], ...]:
    """Return the price tables of a directory, or the one table that a file is, each with its symbol.

    Raises:
        InvalidSpec: there is no table, or a table is invalid.
    """
    found = sorted(one for one in path.iterdir() if one.name.endswith(SUFFIXES)) if path.is_dir() else [path]
    if not found:
        raise InvalidSpec(
            f"data: no {', '.join(SUFFIXES)} file in {path}; put one table of candles per symbol there"
        )
    return tuple((one.name.split(".")[0], read_ohlcv(one)) for one in found)


class CandleNetwork(nn.Module):
    """One encoder for the candles of all timeframes, then attention across them."""

    def __init__(self, plan: ResidentTransformer, *, recompute: bool) -> None:
        super().__init__()
        self.pool = plan.pool
        self.recompute = recompute
        positions = (plan.days + plan.weeks + plan.months) // plan.pool
        self.candles = nn.Sequential(
            nn.Linear(plan.pool * FIELDS, plan.width), nn.GELU(), nn.Linear(plan.width, plan.width)
        )
        self.timeframe = nn.Embedding(len(TIMEFRAMES), plan.width)
        self.position = nn.Embedding(positions + 1, plan.width)
        self.blocks = nn.ModuleList(
            EncoderBlock(plan.width, plan.heads, plan.dropout) for _ in range(plan.layers - 1)
        )
        self.last = EncoderBlock(plan.width, plan.heads, plan.dropout)
        self.norm = nn.LayerNorm(plan.width)
        self.head = nn.Linear(plan.width, len(ACTIONS) + FIELDS)
        self.apply(initialise)

    def forward(self, *windows_RWF: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the actions, (R, A), and the next candle, (R, F)."""
        x_RPC = torch.cat([self._encode(window, i) for i, window in enumerate(windows_RWF)], dim=1)
        x_RPC = F.pad(x_RPC, (0, 0, 0, 1)) + self.position.weight  # the last position is the query
        x_RPC = through(self.blocks, x_RPC, recompute=self.recompute)
        answer_RC = self.norm(self.last(x_RPC, last_only=True)).squeeze(1)
        logits_RA, candle_RF = self.head(answer_RC).split([len(ACTIONS), FIELDS], dim=1)
        return logits_RA, candle_RF

    def _encode(self, window_RWF: Tensor, timeframe: int) -> Tensor:
        pooled_RPf = window_RWF.unflatten(1, (-1, self.pool)).flatten(2)
        return self.candles(pooled_RPf) + self.timeframe.weight[timeframe]


class CandleTransformer(TrainedWorkload[ResidentTransformer, CandleNetwork]):
    """The workload: annotations, model and loss of one spec."""

    item = "annotation"

    def __init__(self, plan: ResidentTransformer, setting: BuildContext) -> None:
        self.plan = plan
        tables = read_tables(Path(plan.data))
        self._corpus = _sha256(tables)
        annotations = annotate(tables, plan)  # not kept: records take three times the memory of tensors
        train = convert(annotations.train)
        self._share_A = _shares(train["action"])
        self._usual_candle_F = train["candle"].median(dim=0).values
        once = setting.switches.profile.conversion == "once"
        sides = annotations.train, annotations.held_out
        self.source = batch_list(*sides, convert, train if once else None, plan, setting.seed)
        setting.switches.applied("conversion", verified=True, note="annotations from JSON text to tensors")
        tell_recomputing(setting.switches, plan.layers)
        seed_all(setting.seed, "weights")
        self.model = CandleNetwork(plan, recompute=setting.switches.profile.activation_checkpointing)

    @property
    def train_items(self) -> int:
        return len(self.source.train) * self.plan.batch_size

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        shape = (plan.days, plan.weeks, plan.months, plan.pool, plan.heads)
        outcome = (plan.every, plan.horizon, plan.threshold, plan.price_weight, plan.dropout)
        return {
            MODEL: model_signature(self.model, plan.kind, *shape),
            CORPUS: self._corpus,
            SCHEDULE: schedule_signature(plan, *outcome),
        }

    def loss_sum(self, batch: Batch) -> Tensor:
        logits_RA, candle_RF = self._predict(batch)
        actions = F.cross_entropy(logits_RA, batch["action"], reduction="sum")
        return actions + self.plan.price_weight * _candle_error(candle_RF, batch["candle"])

    def _predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits_RA, candle_RF = self.model(*(batch[name] for name in TIMEFRAMES))
        return logits_RA.float(), candle_RF.float()

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        logits_RA, candle_RF = self._predict(batch)
        action_R, next_RF = batch["action"], batch["candle"]
        usual_RF = self._usual_candle_F.to(next_RF.device).expand_as(next_RF)
        counted = {name: (action_R == number).sum() for number, name in enumerate(ACTIONS)}
        return counted | {
            "count": torch.tensor(self.count(batch)),
            "correct": (logits_RA.argmax(dim=1) == action_R).sum(),
            "action_loss": F.cross_entropy(logits_RA, action_R, reduction="sum"),
            "candle_loss": _candle_error(candle_RF, next_RF),
            "usual_candle_loss": _candle_error(usual_RF, next_RF),
            "price_error": _price_error(candle_RF, next_RF),
            "usual_price_error": _price_error(usual_RF, next_RF),
            "last_price_error": _price_error(torch.zeros_like(next_RF), next_RF),
        }

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        mean = {name: total / sums["count"] for name, total in sums.items()}
        prior = sum(-mean[name] * math.log(share) for name, share in self._share_A.items())
        weight = self.plan.price_weight
        return Evaluation(
            {
                "eval_loss": mean["action_loss"] + weight * mean["candle_loss"],
                "action_accuracy": mean["correct"],
                "action_loss": mean["action_loss"],
                "price_error": mean["price_error"],
            },
            {
                "eval_loss": prior + weight * mean["usual_candle_loss"],
                "action_accuracy": max(mean[name] for name in ACTIONS),
                "action_loss": prior,
                "price_error": min(mean["last_price_error"], mean["usual_price_error"]),
            },
            "eval_loss",
        )


def choose_task(plan: ResidentTransformer, setting: BuildContext) -> Workload:
    """Return the workload that a plan asks for: days of price tables, or annotation files.

    Raises:
        InvalidSpec: the training data is missing, unreadable, invalid or too small.
    """
    if plan.annotations is None:
        return CandleTransformer(plan, setting)
    from jobs.workloads.resident_transformer.annotated import AnnotatedTransformer  # noqa: PLC0415 - as used

    return AnnotatedTransformer(plan, plan.annotations, setting)


def _candle_error(candle_RF: Tensor, next_RF: Tensor) -> Tensor:
    """Return the sum over all rows of the mean smooth L1 loss of the five fields."""
    return F.smooth_l1_loss(candle_RF, next_RF, reduction="sum") / FIELDS


def _price_error(candle_RF: Tensor, next_RF: Tensor) -> Tensor:
    """Return the sum over all rows of the mean absolute error of the four prices, in percent."""
    return (candle_RF[:, :4] - next_RF[:, :4]).abs().mean(dim=1).sum()


def _shares(action_R: Tensor) -> dict[str, float]:
    """Return the smoothed share of each action; none is 0, so every cross-entropy is finite."""
    count_A = torch.bincount(action_R, minlength=len(ACTIONS)).double() + 1
    return dict(zip(ACTIONS, (count_A / count_A.sum()).tolist(), strict=True))


def _sha256(tables: tuple[tuple[str, Ohlcv], ...]) -> str:
    digest = hashlib.sha256()
    for symbol, table in tables:
        digest.update(f"{symbol} {len(table.dates)} {','.join(table.dates)}".encode())
        digest.update(table.values_NF.numpy().tobytes())
    return digest.hexdigest()
