"""The accounts of jobs: where the time of one went, and what it used of what it asked for."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from runner.core.accounting.account import ENOUGH_S, advise, wall_time
from runner.core.accounting.curve import Curve
from runner.core.job.states import Finished
from runner.core.policy.causes import ExitCause
from runner.core.ports.store import JobRow
from runner.files.revision import parse_revision
from runner.services.context import Caller
from runner.services.curves import CPUS, RESIDENT, TRAFFIC, CurveService
from runner.services.jobs import JobService

SAVING: Final = "seconds_save"
"""The metric of a result with the time of saves."""

OUT_OF_MEMORY: Final = frozenset({ExitCause.HOST_OOM, ExitCause.SHARED_MEMORY})
"""Ends of attempts by a peak that may have been between two samples."""

J_PER_WH: Final = 3600


@dataclass(frozen=True, slots=True)
class AccountService:
    """Makes accounts from the store and the curves."""

    service: JobService
    curves: CurveService

    def describe(self, caller: Caller, reference: str) -> dict[str, Any]:
        """Return the account of a job as JSON; null where something is not known. May raise Unavailable."""
        row = self.service.queries.readable(caller, reference)
        revision = parse_revision(row.revision)
        resources, asked_bytes = revision.job.resources, revision.memory(row.job.turned)
        kept = self.curves.of_job(row)
        curves, energy_j = kept.curves, kept.energy_j
        asked = {"memory_bytes": asked_bytes, "cpus": resources.cpus, "gpus": resources.gpus}
        memory, cpus = _summary(curves.get(RESIDENT)), _summary(curves.get(CPUS))
        devices = {name: _summary(curve) for name, curve in curves.items() if name.startswith("device ")}
        time = self._time(row)
        ran_out = any(each.cause in OUT_OF_MEMORY for each in self.service.store.attempts(row.job.id))
        advice = advise(
            asked_bytes,
            None if memory is None or ran_out else memory["peak"],
            resources.cpus,
            None if cpus is None else cpus["peak"],
        )
        return {
            "job": row.job.id,
            "asked": asked,
            "used": {
                "memory_bytes": memory,
                "cpus": cpus,
                "devices": devices,
                **{name: _summary(curves.get(name)) for name in TRAFFIC},
                "energy_wh": None if energy_j is None else energy_j / J_PER_WH,
            },
            "time": time,
            "advice": advice if time["work_s"] >= ENOUGH_S else [],
        }

    def _time(self, row: JobRow) -> dict[str, Any]:
        state = row.job.state
        until = state.since if isinstance(state, Finished) else self.service.clock.now()
        results = [result for _, result, *_ in self.service.queries.attempts(row) if result is not None]
        saving_s = sum(result.metrics.get(SAVING, 0.0) for result in results)
        spans = self.service.usage_report.of_job(row.job.id)
        time = wall_time(row.submitted_at.timestamp(), until.timestamp(), spans, saving_s)
        return {**asdict(time), "total_s": time.total_s, "goodput": time.goodput}


def _summary(curve: Curve | None) -> dict[str, float] | None:
    """Return the peak and the mean of a curve."""
    if curve is None or not curve.points:
        return None
    values = sum(each.values for each in curve.points)
    mean = sum(each.mean * each.values for each in curve.points) / values
    return {"peak": max(each.high for each in curve.points), "mean": mean}
