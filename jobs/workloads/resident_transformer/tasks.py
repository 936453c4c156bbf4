"""Chooses between the two tasks of ``resident_transformer``: days of price tables, or annotation files."""

from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.workloads.protocol import BuildContext, Workload


def choose_task(plan: ResidentTransformer, setting: BuildContext) -> Workload:
    """Return the workload that a plan asks for.

    Raises:
        InvalidSpec: the training data is missing, unreadable, invalid or too small.
    """
    if plan.annotations is None:
        from jobs.workloads.resident_transformer.workload import CandleTransformer  # noqa: PLC0415 - as used

        return CandleTransformer(plan, setting)
    from jobs.workloads.resident_transformer.annotated import AnnotatedTransformer  # noqa: PLC0415 - as used

    return AnnotatedTransformer(plan, plan.annotations, setting)
