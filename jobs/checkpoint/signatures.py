"""Compatibility of checkpoints: one hash per aspect of a training, compared by name.

A change of the weights' shapes, the optimiser or the corpus makes a checkpoint unusable.  After a
change of schedule, seed or numerics it remains usable, but the results are no longer bitwise equal to
those of the original training, and a warning is logged.
"""

import hashlib
import json
from collections.abc import Mapping

from torch import nn

from jobs.contract import TRAJECTORY, WATCHED, TrainingPlan
from jobs.training.failures import InvalidSpec

MODEL = "model"
OPTIMIZER = "optimizer"
CORPUS = "data"
SCHEDULE = "schedule"
NUMERICS = "numerics"
SEED = "seed"

_MUST_AGREE = (MODEL, OPTIMIZER, CORPUS)
_SHOULD_AGREE = (SCHEDULE, SEED, NUMERICS)


def signature(value: object) -> str:
    """Return the sha256 of a value made of JSON types."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def model_signature(model: nn.Module, *more: object) -> str:
    """Return the signature of a model: names, shapes and types of its state, and further properties."""
    shapes = [[name, list(t.shape), str(t.dtype)] for name, t in model.state_dict().items()]
    return signature([*more, shapes])


def schedule_signature(plan: TrainingPlan, *more: object) -> str:
    """Return the signature of the settings that affect the trajectory, but not checkpoint compatibility."""
    names = {*TRAJECTORY, "init_from", "init_map", *(WATCHED if plan.is_watched else ())}
    return signature([plan.model_dump(mode="json", include=names), *more])


def differences(saved: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the aspects in which a usable checkpoint differs from the training that resumes from it.

    Raises:
        InvalidSpec: The checkpoint is not usable.
    """
    against = [name for name in _MUST_AGREE if saved.get(name) != now.get(name)]
    if against:
        raise InvalidSpec(
            f"the checkpoint does not fit the spec: other {', '.join(against)};"
            " undo that change or restart from scratch"
        )
    return tuple(name for name in _SHOULD_AGREE if saved.get(name) != now.get(name))


def same_training(saved: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return True if two trainings end with the same model, apart from rounding."""
    names = (*_MUST_AGREE, SCHEDULE, SEED)
    return all(saved.get(name) == now.get(name) for name in names)
