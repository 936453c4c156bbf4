"""A hand-written training loop around a workload: what the trainer must agree with, in ten lines."""

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from jobs.training.batches import Batch, split
from jobs.training.randomness import seed_all
from jobs.workloads.protocol import Evaluation, Source, Workload

SEED = 3


def gradients(workload: Workload, batch: Batch, rows: int = 10**6) -> tuple[float, list[Tensor]]:
    """Return the mean loss of a batch and the gradients, by micro-batches of at most so many rows."""
    workload.model.zero_grad(set_to_none=True)
    total = 0.0
    for part in split(batch, rows):
        loss = workload.loss_sum(part) / workload.count(batch)
        loss.backward()
        total += float(loss.detach())
    return total, [p.grad.clone() for p in workload.model.parameters() if p.grad is not None]


def train(workload: Workload, steps: int, learning_rate: float) -> list[float]:
    """Return the losses of the first steps, the weights being those after them."""
    optimizer: Any = torch.optim.AdamW(workload.parameter_groups(), lr=learning_rate)
    losses = []
    for step in range(steps):
        seed_all(SEED, step)
        losses.append(gradients(workload, workload.source.batch(step))[0])
        optimizer.step()
    return losses


@torch.inference_mode()
def evaluate(workload: Workload) -> Evaluation:
    """Return the metrics of the held-out batches."""
    workload.model.eval()
    sums: dict[str, float] = {}
    for index in range(workload.plan.eval_batches):
        for name, value in workload.score(workload.source.held_out(index)).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    workload.model.train()
    found = workload.judge(sums)
    assert_declared(workload, found)
    return found


def assert_declared(workload: Workload, found: Evaluation) -> None:
    """Assert that the plan declares all that an evaluation reports: a job file may name nothing else."""
    declared = workload.plan.evaluates
    names = (*found.metrics, *found.details)
    assert [name for name in names if not any(fnmatchcase(name, each) for each in declared)] == []


class _Steps(Dataset[Batch]):
    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, step: int) -> Batch:
        return self._source.batch(step)


def made_elsewhere(source: Source, steps: list[int]) -> list[Batch]:
    """Return the batches of some steps as a loader process makes them."""
    return list(DataLoader(_Steps(source), batch_size=None, sampler=steps, num_workers=1))


def same(one: Batch, other: Batch) -> bool:
    """Return True if two batches are equal to the bit."""
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
