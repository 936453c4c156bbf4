"""The same batches in every epoch, converted once or at each use, and never written into."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobs.contract import Profile
from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.data.tables import Ohlcv
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext
from jobs.workloads.resident_transformer.workload import CandleTransformer
from tests.unit.jobs.workloads.bare_loop import made_elsewhere, same
from tests.unit.jobs.workloads.resident_transformer.test_candles import table

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


# --- The batch is a function of the step


@pytest.mark.parametrize("conversion", ["once", "each_use"])
def test_a_batch_is_the_same_in_two_sources_and_in_a_loader_process(prices: Path, conversion: str) -> None:
    one = build(prices, conversion=conversion).source
    other = pickle.loads(pickle.dumps(build(prices).source))  # noqa: S301 - our own bytes
    steps = [5, 0, 40]
    for step, made in zip(steps, made_elsewhere(one, steps), strict=True):
        assert same(other.batch(step), made)
    assert same(one.held_out(2), other.held_out(2))
