"""What is measured is the same graphs, kept and rebuilt."""

import torch

from bench.cases.graphs import NEIGHBOURS, NODES, made, measure
from bench.support.result import Result
from bench.support.scratch import QUICK, open_scratch


def test_kept_and_rebuilt_graphs_are_equal() -> None:
    found = made(NODES)
    place = torch.tensor([3, 40])
    kept, rebuilt = (found[name].source.graphs.of(place, validating=True) for name in ("kept", "rebuilt"))
    assert kept.neighbours_DNK.shape == (2, NODES, NEIGHBOURS)
    assert all(one.equal(other) for one, other in zip(kept, rebuilt, strict=True))


def test_three_pairs_are_measured_in_milliseconds() -> None:
    with open_scratch(QUICK) as scratch:
        lines = list(measure(scratch))
    for line in lines:
        assert isinstance(line, Result)
        assert line.theirs is not None
        assert line.ours.unit == line.theirs.unit == "ms"
    assert [isinstance(line, Result) and line.aim is not None for line in lines] == [False, True, False]
