"""A panel: groups, gaps and the split are as said, every switch gives the same bits, and it can be learnt."""

import dataclasses
import gc
import pickle
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from jobs.contract import Profile
from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads.graph_forecast.cache import Prebuilt
from jobs.workloads.graph_forecast.graphs import Graphs
from jobs.workloads.graph_forecast.panel import PanelDays, grouped
from jobs.workloads.graph_forecast.workload import GraphForecaster
from jobs.workloads.protocol import BuildContext
from tests.fakes.workloads.panels import STOCKS, is_listed, panel_directory, panel_rows, workday, write_panel
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train

DAYS = 160

TINY = {
    "panel": {"features": ["feat_*"], "nodes": 5},
    "batch_size": 4,
    "eval_batches": 6,
    "window": 6,
    "horizons": (1, 5),
    "lookback": 20,
    "neighbours": 2,
    "threshold": 0.0,
    "hidden": 16,
    "heads": 2,
    "dropout": 0.0,
}

LOSSES: list[dict[str, Any]] = [
    {},
    {"loss": "quantile"},
    {"loss": "student_t"},
    {"variable_selection": True, "frequencies": 2},
]


@pytest.fixture(scope="module")
def stocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("panel")
    panel_directory(directory)
    return directory


def build(
    stocks: Path | str,
    *,
    plan: Mapping[str, object] | None = None,
    panel: Mapping[str, object] | None = None,
    cache: Path | None = None,
    **switches: Any,
) -> GraphForecaster:
    columns: Any = TINY["panel"]
    settings = {**TINY, "data": str(stocks), **(plan or {}), "panel": {**columns, **(panel or {})}}
    profile = Profile.model_validate(switches)
    return GraphForecaster(GraphForecast.model_validate(settings), BuildContext(3, Switches(profile), cache))


def source_of(workload: GraphForecaster) -> PanelDays:
    assert isinstance(workload.source, PanelDays)
    return workload.source


# --- Groups and gaps


def test_every_stock_is_in_one_group_and_the_last_is_filled_up() -> None:
    groups = grouped(12, 5, seed=3)
    assert groups.shape == (3, 5)
    assert sorted(groups.flatten().tolist()) == [*range(12), 12, 12, 12]
    assert grouped(12, None, seed=3).tolist() == [list(range(12))]
    assert grouped(12, 99, seed=3).shape == (1, 12)
    assert not grouped(12, 5, seed=4).equal(groups)


def test_a_row_is_a_day_of_a_group_and_shows_who_was_listed(stocks: Path) -> None:
    source = source_of(build(stocks))
    batch = source.held_out(0)
    days, groups = source.split.held_out, len(source.groups_Gn)
    for row in range(4):
        place = row * len(days) * groups // 24
        day, group = days.start + place // groups, place % groups
        for node, stock in enumerate(source.groups_Gn[group].tolist()):
            listed = [stock < STOCKS and is_listed(day - 5 + back, stock, DAYS) for back in range(6)]
            assert batch["present"][row, node].tolist() == listed
            absent = batch["features"][row, node][~torch.tensor(listed)]
            assert (absent == 0).all()
            if not listed[-1]:
                assert (batch["weights"][row, node] == 0).all()


def test_the_weights_make_the_loss_the_mean_of_what_is_known(stocks: Path) -> None:
    workload = build(stocks)
    batch = source_of(workload).batch(0)
    weights, known = batch["weights"], batch["weights"] > 0
    assert float(weights.sum()) == pytest.approx(known.numel(), rel=1e-5)
    assert 0 < int(known.sum()) < known.numel()
    workload.model.eval()
    mean = float(workload.loss_sum(batch).detach()) / workload.count(batch)
    inputs = (batch[name] for name in ("features", "neighbours", "correlations", "present"))
    losses = torch.nn.functional.huber_loss(
        workload.model(*inputs)[..., 0], batch["outcomes"], reduction="none"
    )
    assert mean == pytest.approx(float(losses.detach()[known].mean()), rel=1e-5)


def test_an_absent_stock_changes_nobodys_forecast(stocks: Path) -> None:
    workload = build(stocks)
    model, batch = workload.model.eval(), source_of(workload).batch(1)
    inputs = {name: batch[name] for name in ("features", "neighbours", "correlations", "present")}
    plain = model(*inputs.values())
    row, node = torch.nonzero(~batch["present"][..., -1])[0].tolist()
    inputs["features"] = batch["features"].clone()
    inputs["features"][row, node] = 7.0
    changed = (model(*inputs.values()) - plain).detach().abs().amax((2, 3, 4)) > 0
    changed[row, node] = False
    assert not changed.any()


# --- The split


def test_days_are_split_by_date_with_an_embargo(stocks: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dates = [str(workday(day)) for day in range(DAYS)]
    asked = {"begin": dates[5], "split": dates[100], "end": dates[149], "embargo": 7}
    split = source_of(build(stocks, panel=asked)).split
    assert split.train == range(5 + 19, 93)
    assert split.held_out == range(100, 150)
    out = capfd.readouterr().out
    assert f"training on 69 days {dates[24]} to {dates[92]}; held out 50 days {dates[100]} to" in out
    assert "12 stocks in 3 group(s) of 5, listed on " in out


def test_without_an_embargo_no_training_outcome_lies_in_the_held_out_days(stocks: Path) -> None:
    split = source_of(build(stocks)).split
    assert split.train.stop + 5 == split.held_out.start
    assert split.held_out == range(DAYS - int((DAYS - 19) * 0.2), DAYS)


@pytest.mark.parametrize(
    ("panel", "fact"),
    [
        ({"split": "2031-01-01"}, "data: panel.split 2031-01-01 lies outside of the panel, 2020-01-06 to"),
        ({"begin": "1999-01-01"}, "data: panel.begin 1999-01-01 lies outside of the panel"),
        (
            {"split": "2020-01-20"},
            "leave 0 to train on and 141 held out, with 3 graph(s) each; a batch takes 4",
        ),
        ({"end": "2020-02-03"}, "lower eval_batches or batch_size, or give more days"),
    ],
)
def test_a_split_that_does_not_fit_the_panel_is_refused(
    stocks: Path, panel: dict[str, object], fact: str
) -> None:
    with pytest.raises(InvalidSpec, match=re.escape(fact)):
        build(stocks, panel=panel)


@pytest.mark.parametrize(
    ("plan", "fact"),
    [
        (
            {"panel": {"begin": "2020-05-01", "end": "2020-05-01"}},
            "end 2020-05-01 must come after begin 2020-05-01",
        ),
        ({"panel": {"split": "tomorrow"}}, 'must be a day as 2024-12-31, not "tomorrow"'),
        ({"panel": {"split": "20240105"}}, 'must be a day as 2024-12-31, not "20240105"'),
        ({"panel": {"embargo": 3}}, "embargo 3 is shorter than the longest horizon, 5"),
        ({"panel": {"target": "target"}}, "must contain {horizon}"),
        ({"panel": None}, "synthetic-panel needs panel"),
        ({"data": "synthetic-stocks"}, "synthetic-stocks is no panel; write synthetic-panel"),
        ({"quantiles": [0.1, 0.9]}, "quantiles [0.1, 0.9] must rise, each number once, and hold 0.5"),
        ({"frequencies": 4}, "frequencies 4 are more than half of the window of 6 days"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(plan: dict[str, object], fact: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(fact)):
        GraphForecast.model_validate({**TINY, "data": "synthetic-panel", **plan})


def test_a_plan_without_the_new_fields_has_the_json_of_earlier_versions() -> None:
    fields = GraphForecast.model_validate({"data": "synthetic-stocks"}).model_dump(mode="json").keys()
    assert not fields & {"panel", "loss", "quantiles", "variable_selection", "frequencies"}


# --- The same work in every arm


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "switches",
    [
        {"graph_cache": "off", "conversion": "each_use"},
        {"graph_cache": "disk"},
        {"activation_checkpointing": True},
    ],
)
def test_every_switch_gives_the_same_training_to_the_bit(
    stocks: Path, tmp_path: Path, switches: dict[str, Any], loss: dict[str, Any]
) -> None:
    plain, arm = build(stocks, plan=loss), build(stocks, plan=loss, cache=tmp_path, **switches)
    assert plain.signatures == arm.signatures
    assert train(arm, 3, 1e-3) == train(plain, 3, 1e-3)
    one, other = evaluate(arm), evaluate(plain)
    counted = {"graph_hits", "graph_misses"}
    assert {name: one.metrics[name] for name in one.metrics.keys() - counted} == {
        name: other.metrics[name] for name in other.metrics.keys() - counted
    }
    assert one.baseline == other.baseline


def test_a_source_that_was_pickled_makes_the_same_batches(stocks: Path) -> None:
    source = build(stocks, graph_cache="off", conversion="each_use").source
    again = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own
    assert same(again.batch(4), source_of(build(stocks)).batch(4))


@pytest.mark.parametrize("loss", LOSSES)
def test_micro_batches_change_rounding_alone(stocks: Path, loss: dict[str, Any]) -> None:
    workload = build(stocks, plan=loss)
    batch = workload.source.batch(0)
    (whole, gradients_), (parts, others) = gradients(workload, batch), gradients(workload, batch, 1)
    assert parts == pytest.approx(whole, abs=1e-6)
    for one, other in zip(gradients_, others, strict=True):
        assert other.allclose(one, atol=1e-6)


def test_graphs_on_disk_survive_the_attempt_and_know_the_gaps(stocks: Path, tmp_path: Path) -> None:
    first = build(stocks, cache=tmp_path, graph_cache="disk").source.graphs.counts
    again = build(stocks, cache=tmp_path, graph_cache="disk").source.graphs.counts
    assert (first.hits, again.misses) == (0, 0)
    assert first.misses == again.hits > 0
    with_gap = panel_rows()
    place = next(n for n, code in enumerate(with_gap["code"]) if code == "1005" and n > 900)
    for column in with_gap.values():
        del column[place]
    other = write_panel(tmp_path / "other.parquet", with_gap)
    assert build(other, cache=tmp_path, graph_cache="disk").source.graphs.counts.misses > 0


def test_what_is_on_the_device_makes_the_same_batches_and_leaves_no_copy(stocks: Path) -> None:
    workload = build(stocks)
    source = source_of(workload)
    batch, known = source.batch(2), source.known
    assert known is not None
    assert isinstance(source.graphs, Prebuilt)
    assert isinstance(source.graphs.graphs, Graphs)
    assert source.resident_bytes == known.size_bytes + source.graphs.size_bytes
    assert same(source.on(torch.device("cpu")).batch(2), batch)
    left = [weakref.ref(known.features_DNF), weakref.ref(known.outcomes_DNJ)]
    workload.source = source.on(torch.device("meta"))
    del source, known
    gc.collect()
    assert [ref for ref in left if ref() is not None] == []
    assert build(stocks, conversion="each_use").source.resident_bytes is None


# --- What is learnt


@pytest.mark.parametrize("loss", LOSSES)
def test_the_forecaster_beats_the_usual_outcome_on_later_days(stocks: Path, loss: dict[str, Any]) -> None:
    workload = build(stocks, plan={"hidden": 16, **loss})
    train(workload, 80, 5e-3)
    found = evaluate(workload)
    assert found.primary == "eval_loss"
    assert found.metrics["eval_loss"] < found.baseline["eval_loss"]
    assert found.metrics["rank_ic_1d"] > 0.2
    assert found.metrics["sharpe_5d"] > 0
    assert found.metrics["hit_rate_1d"] > found.baseline["hit_rate_1d"]
    assert found.baseline["rank_ic_1d"] == found.baseline["sharpe_1d"] == 0
    assert ("coverage_return_1d" in found.metrics) == (loss.get("loss") == "quantile")


def test_a_table_of_prices_takes_the_new_losses_and_parts_too() -> None:
    fields = {
        **TINY,
        "data": "synthetic-stocks",
        "synthetic_assets": 5,
        "synthetic_days": 300,
        "scales": (5, 20),
    }
    fields |= {"panel": None, "loss": "quantile", "variable_selection": True, "frequencies": 2}
    workload = GraphForecaster(GraphForecast.model_validate(fields), BuildContext(3, Switches(Profile())))
    train(workload, 3, 1e-3)
    found = evaluate(workload)
    assert {"volatility_loss", "coverage_volatility_1d", "ic_5d"} < found.metrics.keys()


def test_a_checkpoint_does_not_fit_another_loss_split_or_panel(stocks: Path) -> None:
    plain = build(stocks).signatures
    assert build(stocks, plan={"loss": "student_t"}).signatures["model"] != plain["model"]
    assert build(stocks, panel={"embargo": 9}).signatures["data"] != plain["data"]
    assert build(stocks, panel={"features": ["feat_signal"]}).signatures["data"] != plain["data"]


def test_one_stock_makes_no_graph(tmp_path: Path) -> None:
    rows = panel_rows()
    own = [place for place, code in enumerate(rows["code"]) if code == "1000"]
    alone = {name: [column[place] for place in own] for name, column in rows.items()}
    path = write_panel(tmp_path / "one.parquet", alone)
    with pytest.raises(InvalidSpec, match=r"one\.parquet: one stock, 1000; a graph takes at least two"):
        build(path)


def test_a_feature_that_is_missing_on_all_training_days_is_named(tmp_path: Path) -> None:
    rows = panel_rows()
    late = len(rows["date"]) - 50
    rows["feat_noise"] = [None] * late + rows["feat_noise"][late:]
    with pytest.raises(
        InvalidSpec, match=r"data: feat_noise has 0 number\(s\) on the training days; leave it"
    ):
        build(write_panel(tmp_path / "late.parquet", rows))


def test_made_up_panels_are_called_so(capfd: pytest.CaptureFixture[str]) -> None:
    made_up = {"synthetic_days": 200, "synthetic_assets": 12}
    workload = build("synthetic-panel", plan=made_up, panel={"features": ["*"]}, conversion="each_use")
    assert "SYNTHETIC DATA: 12 made-up stocks, 200 made-up days" in capfd.readouterr().err
    assert workload._switches.report()["conversion"].applied == "once"
    assert evaluate(workload).metrics["synthetic_data"] == 1.0
    assert dataclasses.is_dataclass(workload.source)


def test_attention_over_days_is_that_of_torch_which_may_take_a_flash_kernel(
    stocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[bool] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def counted(*states: torch.Tensor, attn_mask: torch.Tensor | None) -> torch.Tensor:
        masks.append(attn_mask is not None)
        return attention(*states, attn_mask=attn_mask)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    train(build(stocks), 2, 1e-3)
    assert len(masks) == 2


def test_horizons_are_weighed_in_the_loss_and_in_its_metric(stocks: Path) -> None:
    plain, weighed = build(stocks), build(stocks, plan={"horizon_weights": [3, 1]})
    only = build(stocks, plan={"horizon_weights": [1, 0]})
    batch = plain.source.batch(0)
    for workload in (weighed, only):
        workload.model.load_state_dict(plain.model.state_dict())
    one, both, three = (float(gradients(each, batch)[0]) for each in (only, plain, weighed))
    assert three == pytest.approx((one + both) / 2, rel=1e-5)
    found, metrics = evaluate(weighed).metrics, evaluate(plain).metrics
    assert found["eval_loss"] == pytest.approx(
        0.75 * metrics["return_1d"] + 0.25 * metrics["return_5d"], rel=1e-5
    )
    assert plain.signatures["schedule"] != weighed.signatures["schedule"]
    assert plain.signatures["model"] == weighed.signatures["model"]


@pytest.mark.parametrize("name", ["huber", "ic", "rank_ic"])
def test_mixed_losses_are_added_with_their_weights_however_a_batch_is_divided(
    stocks: Path, name: str
) -> None:
    plain, mixed = build(stocks), build(stocks, plan={"mixed": {name: 0.5}})
    twice = build(stocks, plan={"mixed": {name: 1.0}})
    batch = plain.source.batch(0)
    for workload in (mixed, twice):
        workload.model.load_state_dict(plain.model.state_dict())
    none, half, whole = (gradients(each, batch)[0] for each in (plain, mixed, twice))
    assert half != pytest.approx(none)
    assert half - none == pytest.approx((whole - none) / 2, rel=1e-4)
    assert gradients(mixed, batch, 1)[0] == pytest.approx(half, rel=1e-5)
    assert all(grad.isfinite().all() for grad in gradients(mixed, batch)[1])
    assert plain.signatures["schedule"] != mixed.signatures["schedule"]


def test_a_correlation_in_the_loss_ranks_better(stocks: Path) -> None:
    plan = {"mixed": {"ic": 1.0}, "return_weight": 1.0}
    workload = build(stocks, plan=plan)
    batch = workload.source.batch(0)
    before = gradients(workload, batch)[0]
    train(workload, 60, 1e-2)
    assert gradients(workload, batch)[0] < before
