"""Chooses the form of ``pair_classifier``: summaries that are compared, or both texts in one sequence."""

from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.workloads.pair_classifier import PairComparator, PairTask
from jobs.workloads.pair_sequence.workload import PairReader
from jobs.workloads.protocol import BuildContext


def choose_form(plan: PairClassifier, setting: BuildContext) -> PairTask:
    """Return the workload of a plan."""
    form = PairReader if plan.form == "sequence" else PairComparator
    return form(plan, setting)
