"""Pairs of molecules: the same work in every arm, and two orders that agree."""

from pathlib import Path

import pytest

from tests.unit.jobs.workloads.bare_loop import made_elsewhere, same
from tests.unit.jobs.workloads.test_pair_classifier import build


@pytest.fixture(scope="module")
def molecules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chains of carbon and oxygen: the more carbon, the less soluble."""
    file = tmp_path_factory.mktemp("data") / "molecules.csv"
    rows = ["smiles,logs,split"]
    for carbons in range(1, 12):
        for oxygens in range(3):
            split = "test" if (carbons + oxygens) % 4 == 0 else "train"
            rows.append(f"{'C' * carbons}{'O' * oxygens},{oxygens - 0.7 * carbons},{split}")
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.mark.parametrize("conversion", ["once", "each_use"])
def test_a_loader_process_makes_the_same_batches(molecules: Path, conversion: str) -> None:
    source = build(molecules, conversion=conversion).source
    assert all(same(made, source.batch(step)) for step, made in enumerate(made_elsewhere(source, [0, 1])))
