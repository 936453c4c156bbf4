"""Compilation that is believed only when it is seen.

``module.compile()`` returns before anything is compiled, may compile nothing without a word,
and fails at the first call.  So: one throw-away forward and backward pass, then a look at the
number of graphs.  The pass changes nothing that lasts: gradients are dropped and every step
seeds its own randomness.
"""

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

from jobs.training import Training


def compile_training(training: Training) -> None:
    """Compile the model of a training, or leave it as it was and list why."""
    counters.clear()
    training.workload.model.compile()
    try:
        training.rehearse()
    except TorchDynamoException as error:
        _back_to_eager(training, _reason(error))
        return
    training.device.graphs = int(counters["stats"]["unique_graphs"])
    if not training.device.graphs:
        _back_to_eager(training, "torch.compile made no graph of this model")


def _back_to_eager(training: Training, why: str) -> None:
    torch.compiler.set_stance("force_eager")
    training.device.fallbacks.append(f"compile not applied: {why}; running eagerly")


def _reason(error: TorchDynamoException) -> str:
    """Return the first two lines: who raised, and what."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
