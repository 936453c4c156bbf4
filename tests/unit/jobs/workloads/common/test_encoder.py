"""The encoder's shortcuts change nothing but the work."""

import torch
from torch import nn

from jobs.contract import Profile
from jobs.training.switches import Switches
from jobs.workloads.common.encoder import EncoderBlock, tell_recomputing, through

X = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1))
SEEN = torch.tensor([[False] * 3 + [True] * 4, [True] * 7])


def blocks(count: int = 2) -> nn.ModuleList:
    torch.manual_seed(2)
    return nn.ModuleList(EncoderBlock(8, 2) for _ in range(count))


def test_the_last_position_alone_says_what_it_says_among_all() -> None:
    (block,) = blocks(1)
    assert torch.allclose(block(X, SEEN, last_only=True), block(X, SEEN)[:, -1:], atol=1e-6)


def test_positions_that_are_not_seen_have_no_influence() -> None:
    changed = torch.where(SEEN[..., None], X, -X)
    before, after = (through(blocks(), x, SEEN, recompute=False)[:, -1] for x in (X, changed))
    assert torch.equal(before, after)
    assert not torch.equal(through(blocks(), changed, recompute=False)[:, -1], before)


def test_every_position_looks_at_all_others() -> None:
    changed = X.clone()
    changed[:, -1] *= -1
    before, after = (through(blocks(1), x, recompute=False) for x in (X, changed))
    assert (before != after).any(dim=2).all()


def test_recomputed_activations_give_the_same_gradients() -> None:
    grads = []
    for recompute in (False, True):
        stack = blocks()
        through(stack, X, SEEN, recompute=recompute).square().sum().backward()
        grads.append([p.grad for p in stack.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_recomputing_is_not_claimed_where_there_is_nothing_to_recompute() -> None:
    said = []
    for layers in (1, 2):
        switches = Switches(Profile(activation_checkpointing=True))
        tell_recomputing(switches, layers)
        said.append((switches.report()["activation_checkpointing"].applied, len(switches.fallbacks)))
    assert said == [("false", 1), ("true", 0)]
