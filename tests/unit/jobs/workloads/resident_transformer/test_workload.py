"""The same batches in every epoch, converted once or at each use, and never written into."""

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.contract import Profile
from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.data.tables import Ohlcv
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext
from jobs.workloads.resident_transformer.workload import CandleTransformer, read_tables
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train
from tests.unit.jobs.workloads.resident_transformer.test_candles import table, weekdays

TINY = {
    "days": 8,
    "weeks": 4,
    "months": 2,
    "pool": 2,
    "every": 2,
    "horizon": 2,
    "batch_size": 8,
    "eval_batches": 3,
    "width": 8,
    "heads": 2,
    "layers": 2,
    "dropout": 0.2,
}


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prices")
    for seed, name in enumerate(("one", "two")):
        write(directory / f"{name}.csv", table(260, seed))
    (directory / "manifest.json").write_text("{}")
    return directory


def write(file: Path, days: Ohlcv) -> None:
    rows = (
        ",".join([day, *map(repr, row)]) for day, row in zip(days.dates, days.values_NF.tolist(), strict=True)
    )
    file.write_text("\n".join(["date,open,high,low,close,volume", *rows]) + "\n")


def build(prices: Path, *, plan: Mapping[str, object] | None = None, **switches: object) -> CandleTransformer:
    settings = {**TINY, "data": str(prices), **(plan or {})}
    profile = Profile.model_validate(switches)
    return CandleTransformer(ResidentTransformer.model_validate(settings), BuildContext(3, Switches(profile)))


def contents(batches: list[Batch]) -> list[str]:
    return sorted(str(batch["1d"].flatten().tolist()) for batch in batches)


def test_every_epoch_visits_the_same_batches_in_another_order(prices: Path) -> None:
    workload = build(prices)
    count = workload.steps_per_epoch
    epochs = [[workload.source.batch(epoch * count + place) for place in range(count)] for epoch in range(3)]
    assert len(set(contents(epochs[0]))) == count > 10
    assert contents(epochs[0]) == contents(epochs[1]) == contents(epochs[2])
    assert not all(map(same, epochs[0], epochs[1]))


def test_another_seed_makes_other_batches(prices: Path) -> None:
    plan = ResidentTransformer.model_validate(TINY | {"data": str(prices)})
    one, other = (CandleTransformer(plan, BuildContext(seed, Switches(Profile()))) for seed in (3, 4))
    assert not same(one.source.batch(0), other.source.batch(0))
    assert same(one.source.held_out(0), other.source.held_out(0))


# --- Equal work in every arm


@pytest.mark.parametrize(
    "switches", [{"conversion": "each_use"}, {"activation_checkpointing": True}], ids=str
)
def test_a_switch_changes_nothing_but_the_work(prices: Path, switches: dict[str, Any]) -> None:
    plain, other = build(prices), build(prices, **switches)
    assert train(plain, 5, 1e-3) == train(other, 5, 1e-3)
    assert evaluate(plain) == evaluate(other)


def test_parts_of_a_batch_add_up_to_the_whole(prices: Path) -> None:
    workload = build(prices, plan={"dropout": 0})
    batch = workload.source.batch(0)
    loss, grads = gradients(workload, batch)
    loss_too, grads_too = gradients(workload, batch, rows=3)
    assert loss_too == pytest.approx(loss, rel=1e-6)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(grads, grads_too, strict=True))


def test_a_batch_is_handed_out_uncopied_and_no_step_writes_into_it(prices: Path) -> None:
    workload = build(prices)
    kept = workload.source.train[0]
    assert isinstance(kept, dict)
    count = workload.steps_per_epoch
    given = [workload.source.batch(step) for step in range(count)]
    assert any(one["1d"].data_ptr() == kept["1d"].data_ptr() for one in given)
    before = [{name: tensor.clone() for name, tensor in one.items()} for one in given]
    versions = [{name: tensor._version for name, tensor in one.items()} for one in given]
    train(workload, 2 * count, 1e-2)
    evaluate(workload)
    assert all(map(same, given, before))
    assert [{name: tensor._version for name, tensor in one.items()} for one in given] == versions


def test_a_resident_source_makes_the_same_batches(prices: Path) -> None:
    source = build(prices).source
    all_batches = [source.batch(step) for step in range(len(source.train))]
    all_batches += [source.held_out(index) for index in range(3)]
    assert source.resident_bytes == sum(t.numel() * t.element_size() for b in all_batches for t in b.values())
    moved = source.on(torch.device("cpu"))
    assert same(moved.batch(9), source.batch(9))
    assert same(moved.held_out(1), source.held_out(1))


def test_records_cannot_be_resident(prices: Path) -> None:
    source = build(prices, conversion="each_use").source
    assert source.resident_bytes is None
    assert same(source.on(torch.device("cpu")).batch(1), source.batch(1))


# --- What it learns


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A market that rises for three days and falls for three, which the days before give away."""
    count = 400
    day = torch.arange(count, dtype=torch.float64)
    close = 100 * (0.02 * torch.where(day % 6 < 3, day % 6, 6 - day % 6)).exp()
    open_ = torch.cat([close[:1], close[:-1]])
    values = [
        open_,
        torch.maximum(open_, close),
        torch.minimum(open_, close),
        close,
        torch.full_like(close, 1e6),
    ]
    file = tmp_path_factory.mktemp("waves") / "wave.csv"
    write(file, Ohlcv(weekdays(count), torch.stack(values, dim=1)))
    return file


def test_it_learns_what_the_majority_and_the_last_price_cannot_know(waves: Path) -> None:
    workload = build(waves, plan={"width": 16, "dropout": 0, "every": 1})
    train(workload, 60, 1e-2)
    evaluation = evaluate(workload)
    assert evaluation.primary == "eval_loss"
    assert evaluation.metrics["action_accuracy"] > evaluation.baseline["action_accuracy"] + 0.3
    for name in ("eval_loss", "action_loss", "price_error"):
        assert evaluation.metrics[name] < 0.7 * evaluation.baseline[name]


def test_the_baseline_is_the_better_of_last_price_and_usual_candle(prices: Path) -> None:
    workload = build(prices)
    names = ("action_loss", "candle_loss", "usual_candle_loss", "price_error", "correct")
    sums = dict.fromkeys(names, 8.0) | {"count": 8.0, "hold": 5.0, "buy": 2.0, "sell": 1.0}
    first = workload.judge(sums | {"last_price_error": 4.0, "usual_price_error": 2.0}).baseline
    second = workload.judge(sums | {"last_price_error": 1.0, "usual_price_error": 2.0}).baseline
    assert (first["price_error"], second["price_error"]) == (2 / 8, 1 / 8)
    assert first["action_accuracy"] == 5 / 8


# --- What it is


def test_items_are_annotations(prices: Path) -> None:
    workload = build(prices)
    assert workload.count(workload.source.batch(0)) == workload.items_per_step == 8
    assert workload.train_items == workload.steps_per_epoch * 8
    visited = contents([workload.source.batch(step) for step in range(workload.steps_per_epoch)])
    assert len(visited) == len(set(visited))


def test_signatures_tell_a_change_of_model_from_a_change_of_aim_or_data(prices: Path, waves: Path) -> None:
    before = build(prices).signatures
    for plan, changed in (
        ({"threshold": 0.02}, "schedule"),
        ({"heads": 4}, "model"),
        ({"data": str(waves)}, "data"),
    ):
        after = build(prices, plan=plan).signatures
        assert [name for name in before if before[name] != after[name]] == [changed]


def test_conversion_is_reported(prices: Path) -> None:
    switches = Switches(Profile(conversion="each_use"))
    CandleTransformer(
        ResidentTransformer.model_validate(TINY | {"data": str(prices)}), BuildContext(3, switches)
    )
    report = switches.report()["conversion"]
    assert (report.applied, report.verified) == ("each_use", True)


def test_a_directory_may_hold_packed_tables(prices: Path, tmp_path: Path) -> None:
    for plain in prices.glob("*.csv"):
        (tmp_path / f"{plain.name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    unpacked, packed = read_tables(prices), read_tables(tmp_path)
    assert [symbol for symbol, _ in packed] == [symbol for symbol, _ in unpacked] == ["one", "two"]
    assert all(
        torch.equal(one.values_NF, other.values_NF)
        for (_, one), (_, other) in zip(packed, unpacked, strict=True)
    )


def test_a_directory_without_tables_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no prices")
    with pytest.raises(
        InvalidSpec, match=r"data: no \.csv, .* file in .*; put one table of candles per symbol"
    ):
        build(tmp_path)


def test_a_table_is_refused_by_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("date,open\n2001-01-01,1\n")
    with pytest.raises(InvalidSpec, match=r"a\.csv"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"width": 10, "heads": 4}, "width 10 is not a multiple of heads 4"),
        ({"weeks": 9}, "weeks 9 is not a mul"),
    ],
)
def test_shapes_that_do_not_divide_are_refused(fields: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ResidentTransformer.model_validate({"data": "x"} | fields)


def test_half_precision_says_about_the_same(prices: Path) -> None:
    workload = build(prices, plan={"dropout": 0})
    batch = workload.source.batch(0)
    exact = workload.loss_sum(batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = workload.loss_sum(batch).detach()
    assert rounded.dtype == torch.float32
    assert torch.allclose(exact, rounded, rtol=0.02)
