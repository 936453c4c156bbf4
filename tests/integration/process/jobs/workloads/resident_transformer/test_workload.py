"""The same batches in every epoch, converted once or at each use, and never written into."""

import pickle
from pathlib import Path

import pytest

from tests.unit.jobs.workloads.bare_loop import made_elsewhere, same
from tests.unit.jobs.workloads.resident_transformer.test_candles import table
from tests.unit.jobs.workloads.resident_transformer.test_workload import build, write


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prices")
    for seed, name in enumerate(("one", "two")):
        write(directory / f"{name}.csv", table(260, seed))
    (directory / "manifest.json").write_text("{}")
    return directory


# --- The batch is a function of the step


@pytest.mark.parametrize("conversion", ["once", "each_use"])
def test_a_batch_is_the_same_in_two_sources_and_in_a_loader_process(prices: Path, conversion: str) -> None:
    one = build(prices, conversion=conversion).source
    other = pickle.loads(pickle.dumps(build(prices).source))  # noqa: S301 - our own bytes
    steps = [5, 0, 40]
    for step, made in zip(steps, made_elsewhere(one, steps), strict=True):
        assert same(other.batch(step), made)
    assert same(one.held_out(2), other.held_out(2))
