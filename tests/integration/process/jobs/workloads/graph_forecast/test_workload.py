"""The forecaster: its edges matter, its switches do not, and it beats the usual outcome."""

from datetime import date
from pathlib import Path

import pytest
import torch

from jobs.contract import Profile
from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.training.switches import Switches
from jobs.workloads.graph_forecast.workload import GraphForecaster
from jobs.workloads.protocol import BuildContext
from tests.fakes.workloads.panels import panel_directory
from tests.unit.jobs.workloads.bare_loop import made_elsewhere, same
from tests.unit.jobs.workloads.graph_forecast.test_workload import TINY, build

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


def test_a_loader_process_makes_the_same_batches(stocks: Path) -> None:
    source = build(stocks, loader_workers=1).source
    for step, batch in zip((5, 1), made_elsewhere(source, [5, 1]), strict=True):
        assert same(batch, source.batch(step))


def test_a_loader_process_makes_the_same_batches_of_a_panel(tmp_path: Path) -> None:
    panel_directory(tmp_path / "panel")
    fields = {**TINY, "data": str(tmp_path / "panel"), "panel": {"features": ["feat_*"], "nodes": 5}}
    plan, profile = GraphForecast.model_validate(fields), Profile(graph_cache="off", conversion="each_use")
    source = GraphForecaster(plan, BuildContext(3, Switches(profile), None)).source
    [elsewhere] = made_elsewhere(source, [4])
    assert same(elsewhere, source.batch(4))
