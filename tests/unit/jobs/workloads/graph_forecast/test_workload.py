"""The forecaster: its edges matter, its switches do not, and it beats the usual outcome."""

import pickle
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from jobs.contract import Profile
from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads.graph_forecast.model import Forecaster
from jobs.workloads.graph_forecast.workload import GraphForecaster
from jobs.workloads.protocol import BuildContext
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train

TINY = {
    "batch_size": 4,
    "eval_batches": 6,
    "window": 6,
    "scales": (5, 20),
    "horizons": (1, 5),
    "lookback": 20,
    "neighbours": 2,
    "threshold": 0.0,
    "hidden": 16,
    "heads": 2,
    "dropout": 0.0,
}

ARMS: list[dict[str, Any]] = [
    {"graph_cache": "off"},
    {"graph_cache": "disk"},
    {"conversion": "each_use"},
    {"activation_checkpointing": True},
    {"graph_cache": "off", "conversion": "each_use"},
]

DAYS, ASSETS = 400, 5


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prices whose movements come in spells, which all assets share."""
    generator = torch.Generator().manual_seed(0)
    noise, spell = (torch.randn(DAYS, n, generator=generator, dtype=torch.float64) for n in (ASSETS, 1))
    size, sizes = torch.zeros(1, dtype=torch.float64), []
    for shock in spell:
        size = 0.97 * size + 0.25 * shock
        sizes.append(size)
    values = (0.01 * torch.stack(sizes).exp() * (noise + noise[:, :1])).cumsum(0).exp()
    rows = ["date,A,B,C,D,E"]
    for day, row in enumerate(values.tolist()):
        rows.append(date.fromordinal(730000 + day).isoformat() + "," + ",".join(map(repr, row)))
    file = tmp_path_factory.mktemp("data") / "prices.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


def build(
    stocks: Path | str,
    *,
    plan: Mapping[str, object] | None = None,
    cache: Path | None = None,
    **switches: Any,
) -> GraphForecaster:
    settings = {**TINY, "data": str(stocks), **(plan or {})}
    profile = Profile.model_validate(switches)
    return GraphForecaster(GraphForecast.model_validate(settings), BuildContext(3, Switches(profile), cache))


def applied(workload: GraphForecaster, name: str) -> tuple[str | None, bool | None, str]:
    switch = workload._switches.report()[name]
    return switch.applied, switch.verified, switch.note


# --- The batch is a function of the step


@pytest.mark.parametrize("switches", [{}, {"graph_cache": "off", "conversion": "each_use"}])
def test_a_batch_is_the_same_in_two_sources_and_in_any_order(stocks: Path, switches: dict[str, Any]) -> None:
    one = build(stocks, **switches).source
    other = pickle.loads(pickle.dumps(build(stocks, **switches).source))  # noqa: S301 - our own
    later, earlier = one.batch(7), one.batch(2)
    assert same(other.batch(2), earlier)
    assert same(other.batch(7), later)
    assert not same(earlier, later)
    assert same(other.held_out(1), one.held_out(1))


def test_held_out_days_are_spread_over_the_whole_later_part(stocks: Path) -> None:
    source = build(stocks).source
    seen = torch.cat([source.held_out(index)["outcomes"][:, 0, 0, 0] for index in range(6)])
    assert len(seen.unique()) == 24
    assert seen[0] == source.held_out(0)["outcomes"][0, 0, 0, 0]
    days = source.split.held_out
    spread = [days.start + number * len(days) // 24 for number in range(24)]
    assert spread[-1] > days.stop - len(days) // 12


def test_resident_data_make_the_same_batches(stocks: Path) -> None:
    source = build(stocks).source
    batch = source.batch(0)
    moved = source.on(torch.device("cpu"))
    assert same(moved.batch(0), batch)
    assert source.resident_bytes == sum(
        one.numel() * one.element_size()
        for one in (*source.graphs.graphs, source.known.features_DNF, source.known.outcomes_DN2J)  # type: ignore[union-attr, attr-defined]
    )
    there = source.on(torch.device("meta")).batch(0)
    assert {tensor.device.type for tensor in there.values()} == {"meta"}


def test_a_source_that_opens_its_table_each_time_cannot_be_resident(stocks: Path) -> None:
    assert build(stocks, conversion="each_use").source.resident_bytes is None


# --- The same work in every arm


@pytest.mark.parametrize("switches", ARMS)
def test_every_switch_gives_the_same_training_to_the_bit(
    stocks: Path, tmp_path: Path, switches: dict[str, Any]
) -> None:
    plain, arm = build(stocks), build(stocks, cache=tmp_path, **switches)
    assert train(arm, 4, 1e-3) == train(plain, 4, 1e-3)
    one, other = evaluate(arm), evaluate(plain)
    counted = {"graph_hits", "graph_misses"}
    assert {name: one.metrics[name] for name in one.metrics.keys() - counted} == {
        name: other.metrics[name] for name in other.metrics.keys() - counted
    }
    assert one.baseline == other.baseline


def test_micro_batches_change_rounding_alone(stocks: Path) -> None:
    workload = build(stocks)
    batch = workload.source.batch(0)
    (whole, gradients_), (parts, others) = gradients(workload, batch), gradients(workload, batch, 1)
    assert parts == pytest.approx(whole, abs=1e-6)
    for one, other in zip(gradients_, others, strict=True):
        assert other.allclose(one, atol=1e-6)


def test_training_is_deterministic_where_only_deterministic_algorithms_are_allowed(stocks: Path) -> None:
    torch.use_deterministic_algorithms(mode=True)
    runs = [train(build(stocks, plan={"dropout": 0.2}), 4, 1e-3) for _ in range(2)]
    assert runs[0] == runs[1]


# --- What became of the switches is said


def test_the_report_counts_hits_and_rebuilds(stocks: Path) -> None:
    off = build(stocks, graph_cache="off")
    assert applied(off, "graph_cache")[1] is None
    metrics = evaluate(off).metrics
    assert (metrics["graph_hits"], metrics["graph_misses"]) == (0, 24)
    assert applied(off, "graph_cache") == ("off", True, "24 rebuilt, 0 remembered from the last 100 days")
    kept = build(stocks)
    days = len(kept.source.split.days)
    metrics = evaluate(kept).metrics
    assert (metrics["graph_hits"], metrics["graph_misses"]) == (24, days)
    assert applied(kept, "graph_cache") == ("memory", True, f"24 hits, {days} misses")


def test_graphs_on_disk_survive_the_attempt(stocks: Path, tmp_path: Path) -> None:
    first = build(stocks, cache=tmp_path, graph_cache="disk")
    days = len(first.source.split.days)
    assert applied(first, "graph_cache") == ("disk", True, f"0 hits, {days} misses")
    second = build(stocks, cache=tmp_path, graph_cache="disk")
    assert applied(second, "graph_cache") == ("disk", True, f"{days} hits, 0 misses")


def test_a_disk_cache_without_a_directory_falls_back_to_memory_and_says_so(stocks: Path) -> None:
    workload = build(stocks, graph_cache="disk")
    assert applied(workload, "graph_cache")[0] == "memory"
    assert "no directory that outlives an attempt" in workload._switches.fallbacks[0]


def test_conversion_says_what_it_does(stocks: Path) -> None:
    assert applied(build(stocks), "conversion") == ("once", True, "arrays of all days")
    each = applied(build(stocks, conversion="each_use"), "conversion")
    assert each == ("each_use", True, "prices.csv opened for every day of every batch")


# --- The graph is used


def forecast(model: Forecaster, batch: Mapping[str, Tensor], **changes: Tensor) -> Tensor:
    inputs = {**batch, **changes}
    return model(inputs["features"], inputs["neighbours"], inputs["correlations"]).detach()


def test_other_edges_give_other_forecasts(stocks: Path) -> None:
    workload = build(stocks)
    batch = workload.source.batch(0)
    model = workload.model.eval()
    plain = forecast(model, batch)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(batch["neighbours"].numel(), generator=generator)
    shuffled = batch["neighbours"].flatten()[order].view_as(batch["neighbours"])
    assert (forecast(model, batch, neighbours=shuffled) - plain).abs().max() > 1e-3
    none = torch.arange(ASSETS)[None, :, None].expand_as(batch["neighbours"])
    assert (forecast(model, batch, neighbours=none) - plain).abs().max() > 1e-3
    weaker = batch["correlations"] / 2
    assert (forecast(model, batch, correlations=weaker) - plain).abs().max() > 1e-4
    swapped = {name: batch[name].flip(-1) for name in ("neighbours", "correlations")}
    assert forecast(model, batch, **swapped).allclose(plain, atol=1e-6)  # their order means nothing


def test_a_node_hears_of_its_neighbours_and_of_nobody_else(stocks: Path) -> None:
    workload = build(stocks, plan={"layers": 1})
    batch = workload.source.batch(0)
    model = workload.model.eval()
    plain = forecast(model, batch)
    louder = batch["features"].clone()
    louder[0, 2] += 1.0
    changed = (forecast(model, batch, features=louder) - plain).abs().amax((2, 3, 4)) > 0
    hears = (batch["neighbours"][0] == 2).any(1)
    hears[2] = True
    assert changed[0].equal(hears)
    assert not changed[1:].any()  # another day's graph


def test_edges_that_are_absent_carry_nothing(stocks: Path) -> None:
    sparse = build(stocks, plan={"threshold": 1.0})
    nobody = build(stocks, plan={"neighbours": 0})
    nobody.model.load_state_dict(sparse.model.state_dict())
    one, other = (each.model.eval() for each in (sparse, nobody))
    assert forecast(one, sparse.source.batch(0)).equal(forecast(other, nobody.source.batch(0)))


# --- What is learnt


def test_the_forecaster_beats_the_usual_outcome_on_later_days(stocks: Path) -> None:
    workload = build(stocks)
    train(workload, 60, 3e-3)
    found = evaluate(workload)
    assert found.primary == "eval_loss"
    assert not found.higher_is_better
    assert found.metrics["eval_loss"] < found.baseline["eval_loss"]
    assert found.metrics["volatility_loss"] < found.baseline["volatility_loss"]
    assert found.baseline["ic_5d"] == 0
    assert {"volatility_1d", "return_5d", "ic_5d", "ic_1d"} < found.metrics.keys()


def test_the_loss_is_that_of_its_parts(stocks: Path) -> None:
    workload = build(stocks, plan={"return_weight": 0.5})
    metrics = evaluate(workload).metrics
    volatility = (metrics["volatility_1d"] + metrics["volatility_5d"]) / 2
    gain = (metrics["return_1d"] + metrics["return_5d"]) / 2
    assert metrics["eval_loss"] == pytest.approx(volatility + 0.5 * gain)
    workload.model.eval()
    batches = [workload.source.held_out(index) for index in range(6)]
    total = sum(float(workload.loss_sum(batch).detach()) for batch in batches)
    assert metrics["eval_loss"] == pytest.approx(total / sum(map(workload.count, batches)), rel=1e-5)


def test_counts_are_counts_of_nodes(stocks: Path) -> None:
    workload = build(stocks)
    assert workload.items_per_step == 4 * ASSETS == workload.count(workload.source.batch(0))
    assert workload.train_items == len(workload.source.split.train) * ASSETS
    assert workload.steps_per_epoch == len(workload.source.split.train) // 4


def test_a_checkpoint_does_not_fit_other_days_edges_or_layers(stocks: Path) -> None:
    plain = build(stocks).signatures
    assert build(stocks, graph_cache="off", conversion="each_use").signatures == plain
    assert build(stocks, plan={"neighbours": 3}).signatures["data"] != plain["data"]
    assert build(stocks, plan={"heads": 4}).signatures["model"] != plain["model"]
    assert build(stocks, plan={"return_weight": 0.3}).signatures["schedule"] != plain["schedule"]


# --- Data that are not what they should be


def test_made_up_prices_are_called_so(capfd: pytest.CaptureFixture[str]) -> None:
    made_up = {"synthetic_days": 400, "synthetic_assets": 5}
    workload = build("synthetic-stocks", plan=made_up, conversion="each_use")
    assert "SYNTHETIC DATA: 5 made-up assets, 400 made-up days" in capfd.readouterr().err
    assert applied(workload, "conversion")[0] == "once"
    assert evaluate(workload).metrics["synthetic_data"] == 1.0


def test_one_asset_makes_no_graph(tmp_path: Path) -> None:
    rows = [f"{date.fromordinal(730000 + day).isoformat()},{100 + day % 7}" for day in range(DAYS)]
    table = tmp_path / "prices.csv"
    table.write_text("\n".join(["date,ONLY", *rows]) + "\n")
    with pytest.raises(InvalidSpec, match=r"prices\.csv:1: one asset, ONLY; a graph takes at least two"):
        build(table)


def test_the_summary_names_both_parts_by_their_dates(stocks: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build(stocks)
    assert "data: 5 assets; training on " in capfd.readouterr().out


def test_weights_depend_on_the_seed_alone(stocks: Path) -> None:
    one, other = build(stocks).model.state_dict(), build(stocks).model.state_dict()
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"hidden": 30, "heads": 4}, "hidden 30 is not a multiple of heads 4"),
        ({"horizons": [5, 1]}, "horizons [5, 1] must rise, each number once"),
        ({"scales": [1, 1]}, "scales [1, 1] must rise, each number once"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change: dict[str, object], fact: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(fact)):
        GraphForecast.model_validate({"data": "synthetic-stocks", **change})
