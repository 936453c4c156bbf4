"""Forecasts stocks with graph attention: over time for each asset, then over a graph of correlations.

The workload follows gogooku3 (ATFT-GAT-FAN): the nodes are the stocks of one trading day, the targets are
forward returns at several horizons, and the graph holds the correlations of the last months.  In gogooku3
the edges never reached the model; here they do, and a test checks it.

There are two kinds of data (``jobs.workloads.graph_forecast.material``).  From a table of prices, the
workload computes features and outcomes itself; as returns of daily prices can hardly be forecast, it also
forecasts volatility, and both are reported.  A long panel has features and forward returns as columns.

Legend: B graphs (days), N nodes of each, k kinds of outcomes, J horizons, P numbers of the forecast of one
outcome.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract.plans.graph_forecast import GraphForecast, Mixed
from jobs.training.batches import Batch
from jobs.training.randomness import seed_all
from jobs.training.report import say
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.graph_forecast.material import Material, material_of
from jobs.workloads.graph_forecast.model import Forecaster, ModelSizes
from jobs.workloads.graph_forecast.objectives import Quantile, objective_of
from jobs.workloads.graph_forecast.ranking import correlations, ranking_sums, ranks, sharpe
from jobs.workloads.protocol import BuildContext, Evaluation


class GraphForecaster(TrainedWorkload[GraphForecast, Forecaster]):
    """The workload: data, graphs, model and losses of one spec."""

    item = "node"

    def __init__(self, plan: GraphForecast, setting: BuildContext) -> None:
        self.plan = plan
        self._switches = setting.switches
        self._objective = objective_of(plan)
        weights = torch.tensor(plan.horizon_weights or [1.0] * len(plan.horizons))
        self._horizon_weights = weights / weights.mean()  # here: an evaluation would make an inference tensor
        material = material_of(plan, setting, self._objective)
        self._take(material)
        seed_all(setting.seed, "weights")
        sizes = ModelSizes(
            material.features, len(material.kinds), self._objective.numbers, gaps=material.gaps
        )
        self.model = Forecaster(plan, sizes, recompute=setting.switches.profile.activation_checkpointing)
        setting.switches.applied("activation_checkpointing")
        self._tell_of_graphs()
        say(material.summary)

    def _take(self, material: Material) -> None:
        self.source = material.source
        self._nodes = material.nodes
        self._kinds = dict(zip(material.kinds, (1.0, self.plan.return_weight), strict=False))
        self._corpus = material.corpus
        self._usual_kJP = material.usual_kJP
        self._gaps = material.gaps
        self._synthetic = material.synthetic

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size * self._nodes

    @property
    def train_items(self) -> int:
        return self.source.train_rows * self._nodes

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        loss = () if plan.loss == "huber" else (plan.loss, plan.quantiles)
        return {
            MODEL: model_signature(self.model, plan.kind, plan.heads, *loss),
            CORPUS: self._corpus,
            SCHEDULE: schedule_signature(plan, plan.dropout, plan.return_weight, *_objective_fields(plan)),
        }

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum over nodes of the losses: volatility and (weighted) return, or return alone."""
        forecast = self._forecast(batch)
        losses_BNkJ = self._objective.losses(forecast, batch["outcomes"])
        if self._gaps:
            losses_BNkJ = losses_BNkJ * batch["weights"]
        weight_J = self._horizon_weights.to(losses_BNkJ.device)
        first, *others = (losses_BNkJ.sum((0, 1)) * weight_J).mean(1)
        total: Tensor = first
        for each in others:
            total = total + self.plan.return_weight * each
        return total if self.plan.mixed is None else total + self._mixed(self.plan.mixed, forecast, batch)

    def _mixed(self, mixed: Mixed, forecast_BNkJP: Tensor, batch: Batch) -> Tensor:
        """Return the further losses of the returns, each day's as much as its nodes."""
        point_BNJ = self._objective.point(forecast_BNkJP)[:, :, -1]
        outcome_BNJ, weight_J = batch["outcomes"][:, :, -1], self._horizon_weights.to(point_BNJ.device)
        known_BNkJ = self._known(batch)
        known_BNJ = (
            torch.ones_like(outcome_BNJ, dtype=torch.bool) if known_BNkJ is None else known_BNkJ[:, :, -1]
        )
        losses_BNJ = F.huber_loss(point_BNJ, outcome_BNJ, reduction="none") * mixed.huber
        losses_BNJ = losses_BNJ * (batch["weights"][:, :, -1] if self._gaps else 1.0)
        for weight, wanted_BNJ in ((mixed.ic, outcome_BNJ), (mixed.rank_ic, ranks(outcome_BNJ, known_BNJ))):
            if weight:
                losses_BNJ = (
                    losses_BNJ + weight * (1 - correlations(point_BNJ, wanted_BNJ, known_BNJ))[:, None]
                )
        return (losses_BNJ.sum((0, 1)) * weight_J).mean()

    def count(self, batch: Batch) -> int:
        return batch["outcomes"].shape[0] * batch["outcomes"].shape[1]

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return sums of the losses of the model and of the usual outcome, and what the ranking is worth."""
        forecast_BNkJP = self._forecast(batch)
        usual_BNkJP = self._usual_kJP.to(forecast_BNkJP.device).expand_as(forecast_BNkJP)
        known_BNkJ = self._known(batch)
        sums = {"nodes": torch.tensor(self.count(batch)), "days": torch.tensor(len(batch["outcomes"]))}
        for who, numbers in (("model", forecast_BNkJP), ("usual", usual_BNkJP)):
            losses_kJ = _summed(self._objective.losses(numbers, batch["outcomes"]), known_BNkJ)
            sums |= {f"{who} {name}": losses_kJ[i, j] for name, i, j in self._names()}
            if isinstance(self._objective, Quantile):
                inside_BNkJ = self._objective.inside(numbers, batch["outcomes"])
                inside_kJ = _summed(inside_BNkJ.float(), known_BNkJ)
                sums |= {f"{who} inside {name}": inside_kJ[i, j] for name, i, j in self._names()}
        point_BNJ, outcome_BNJ = self._objective.point(forecast_BNkJP)[:, :, -1], batch["outcomes"][:, :, -1]
        if known_BNkJ is not None:
            sums |= {f"known {name}": known_BNkJ.sum((0, 1))[i, j] for name, i, j in self._names()}
            found = ranking_sums(point_BNJ, outcome_BNJ, known_BNkJ[:, :, -1])
            return sums | {
                f"{name} {days}d": one[j] for name, one in found.items() for j, days in self._horizons()
            }
        everyone_BNJ = torch.ones_like(outcome_BNJ, dtype=torch.bool)
        ranks_J = correlations(point_BNJ, outcome_BNJ, everyone_BNJ).sum(0)
        return sums | {f"ic_{days}d": ranks_J[j] for j, days in self._horizons()}

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        """Return mean losses; the baseline predicts the usual outcome of the training days."""
        self._tell_of_graphs()
        metrics, usual = self._means("model", sums), self._means("usual", sums)
        for j, days in self._horizons():
            if self._gaps:
                metrics |= _ranking(sums, days)
                usual |= self._usual_ranking(sums, j, days)
            else:
                metrics[f"ic_{days}d"] = sums[f"ic_{days}d"] / sums["days"]
                usual[f"ic_{days}d"] = 0.0  # a constant forecast ranks no asset above another
        counts = self.source.graphs.counts
        metrics |= {"graph_hits": float(counts.hits), "graph_misses": float(counts.misses)}
        if self._synthetic:
            metrics["synthetic_data"] = 1.0
        return Evaluation(metrics, usual, "eval_loss")

    def _usual_ranking(self, sums: Mapping[str, float], j: int, days: int) -> dict[str, float]:
        """Return the value of a constant forecast: it ranks no stock, and says that all rise, or fall."""
        rose = sums[f"rose {days}d"] / max(1.0, sums[f"moved {days}d"])
        rises = float(self._objective.point(self._usual_kJP)[-1, j]) > 0
        nothing = {f"{name}_{days}d": 0.0 for name in ("ic", "rank_ic", "sharpe")}
        return {**nothing, f"hit_rate_{days}d": rose if rises else 1 - rose}

    def _means(self, who: str, sums: Mapping[str, float]) -> dict[str, float]:
        count = {name: max(1.0, sums.get(f"known {name}", sums["nodes"])) for name, _, _ in self._names()}
        each = {name: sums[f"{who} {name}"] / count[name] for name, _, _ in self._names()}
        horizons = self.plan.horizons
        weights = self._horizon_weights.tolist()
        losses = {
            kind: sum(
                weight * each[f"{kind}_{days}d"] for weight, days in zip(weights, horizons, strict=True)
            )
            / len(horizons)
            for kind in self._kinds
        }
        total = 0.0
        for kind, weight in self._kinds.items():
            total += weight * losses[kind]
        covered = {
            f"coverage_{name}": sums[f"{who} inside {name}"] / count[name]
            for name in count
            if f"{who} inside {name}" in sums
        }
        named = {f"{kind}_loss": loss for kind, loss in losses.items()}
        return {"eval_loss": total, **named, **each, **covered}

    def _names(self) -> list[tuple[str, int, int]]:
        return [
            (f"{kind}_{days}d", i, j) for i, kind in enumerate(self._kinds) for j, days in self._horizons()
        ]

    def _horizons(self) -> list[tuple[int, int]]:
        return list(enumerate(self.plan.horizons))

    def _known(self, batch: Batch) -> Tensor | None:
        """Return the mask of known outcomes, None if all are."""
        return batch["weights"] > 0 if self._gaps else None

    def _forecast(self, batch: Batch) -> Tensor:
        inputs = (batch["features"], batch["neighbours"], batch["correlations"], batch.get("present"))
        forecast: Tensor = self.model(*inputs)
        return forecast.float()

    def _tell_of_graphs(self) -> None:
        graphs = self.source.graphs
        seen = graphs.counts.hits + graphs.counts.misses > 0
        self._switches.applied("graph_cache", graphs.kind, verified=seen or None, note=graphs.note)


def _objective_fields(plan: GraphForecast) -> tuple[object, ...]:
    """Return what was added to the loss after the first version, and is in use."""
    mixed = plan.mixed and plan.mixed.model_dump()
    return (plan.horizon_weights, mixed) if plan.horizon_weights or mixed else ()


def _summed(values_BNkJ: Tensor, known_BNkJ: Tensor | None) -> Tensor:
    return (values_BNkJ if known_BNkJ is None else values_BNkJ * known_BNkJ).sum((0, 1))


def _ranking(sums: Mapping[str, float], days: int) -> dict[str, float]:
    """Return the value of the ranking by one horizon."""
    graphs = sums[f"graphs {days}d"]
    return {
        f"ic_{days}d": sums[f"ic {days}d"] / max(1.0, graphs),
        f"rank_ic_{days}d": sums[f"rank_ic {days}d"] / max(1.0, graphs),
        f"sharpe_{days}d": sharpe(sums[f"earned {days}d"], sums[f"earned squared {days}d"], graphs, days),
        f"hit_rate_{days}d": sums[f"hit {days}d"] / max(1.0, sums[f"moved {days}d"]),
    }
