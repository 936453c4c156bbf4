"""The learning rate as a function of the step: nothing of a schedule is ever saved."""

import math

from jobs.contract import TrainingPlan


def learning_rate(plan: TrainingPlan, step: int) -> float:
    """Return the rate that the update of a step uses: a linear warm-up, then down to the floor."""
    if step < plan.warmup_steps:
        return plan.learning_rate * (step + 1) / plan.warmup_steps
    done = (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    return plan.learning_rate * (plan.floor + (1 - plan.floor) * _left(plan, done))


def _left(plan: TrainingPlan, done: float) -> float:
    """Return how much of the way from floor to peak is left, after a share of the steps."""
    match plan.schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return 1 - done
        case "constant":
            return 1.0
