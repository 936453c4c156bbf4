"""The learning rate as a function of the step, so that no scheduler state is saved."""

import math

from jobs.contract import TrainingPlan


def learning_rate(plan: TrainingPlan, step: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then a decay to the floor."""
    if step < plan.warmup_steps:
        return plan.learning_rate * (step + 1) / plan.warmup_steps
    done = (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    return plan.learning_rate * (plan.floor + (1 - plan.floor) * _left(plan, done))


def _left(plan: TrainingPlan, done: float) -> float:
    """Return the remaining share of the range from floor to peak after the share ``done`` of the steps."""
    match plan.schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return 1 - done
        case "constant":
            return 1.0
