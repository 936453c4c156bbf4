"""The measurement compares the same graphs, kept and rebuilt."""

import torch

from bench.cases.graphs import NEIGHBOURS, NODES, made


def test_kept_and_rebuilt_graphs_are_equal() -> None:
    found = made(NODES)
    place = torch.tensor([3, 40])
    kept, rebuilt = (found[name].source.graphs.of(place, validating=True) for name in ("kept", "rebuilt"))
    assert kept.neighbours_DNK.shape == (2, NODES, NEIGHBOURS)
    assert all(one.equal(other) for one, other in zip(kept, rebuilt, strict=True))
