"""The account of a job, over what others tell of it."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.accounting.curve import Curve
from runner.core.accounting.curve_set import CurveSet
from runner.core.accounting.usage import UsageSpan
from runner.core.job.states import Finished, Outcome
from runner.services import accounts as module
from runner.services.accounts import AccountService

GIB = 1024**3
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("cause", ["host_oom", "shared_memory"])
def test_a_job_that_ran_out_of_memory_is_not_advised_to_ask_for_less(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """The peak was between two samples."""
    causes = [cause, "completed"]
    resident, revision = Curve(), SimpleNamespace(memory=lambda _turned: 64 * GIB)
    resident.add(0.0, None, 9.0 * GIB)
    revision.job = SimpleNamespace(resources=SimpleNamespace(cpus=4, gpus=0))
    monkeypatch.setattr(module, "parse_revision", lambda _text: revision)
    job = SimpleNamespace(id="1", turned=None, state=Finished(NOW, Outcome.SUCCEEDED, ""))
    row = SimpleNamespace(revision="", job=job, submitted_at=NOW - timedelta(hours=1))
    began_s = row.submitted_at.timestamp()
    span = UsageSpan("1", "ann", "", 0, 4, began_s, began_s + 3600, began_s)
    service: Any = SimpleNamespace(
        queries=SimpleNamespace(readable=lambda *_: row, attempts=lambda _row: ()),
        store=SimpleNamespace(attempts=lambda _id: [SimpleNamespace(cause=each) for each in causes]),
        usage_report=SimpleNamespace(of_job=lambda _id: (span,)),
    )
    curves: Any = SimpleNamespace(of_job=lambda _row: CurveSet({"resident_bytes": resident}))
    account = AccountService(service, curves)
    anybody: Any = None
    assert account.describe(anybody, "1")["advice"] == []
    causes.pop(0)
    assert len(account.describe(anybody, "1")["advice"]) == 1
