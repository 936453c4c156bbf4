"""Free is what the machine has, less what is lent and what is not fit."""

from dataclasses import replace
from datetime import timedelta

from runner.core.job import RevisionApplied
from runner.core.placement import Needs
from runner.core.policy.rules import Verb
from runner.lending import as_begun, fit, free, lacks
from tests.fakes.host import GPUS, Host
from tests.fakes.vitals import FakeVitals

OTHER = '{"job": {}}'


def _with(host: Host, **bad: str) -> None:
    vitals = FakeVitals(bad={name.replace("_", "-"): why for name, why in bad.items()})
    host.daemon.world = replace(host.daemon.world, vitals=vitals)


def test_where_nobody_looks_every_device_is_fit(host: Host) -> None:
    assert fit(host.daemon.world) == GPUS


def test_a_device_that_is_not_fit_is_not_lent(host: Host) -> None:
    _with(host, GPU_a="it no longer answers")
    job = host.submit()
    host.workshop.needs_of[job] = Needs(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    state = host.row(job).job.state
    assert getattr(state, "allocation").devices == ("GPU-b",)  # noqa: B009


def test_a_job_waits_for_a_device_that_is_fit_again(host: Host) -> None:
    _with(host, GPU_a="lost", GPU_b="its driver asks for gpu_reset")
    job = host.submit()
    host.workshop.needs_of[job] = Needs(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    assert host.state(job) == "queued"
    assert host.daemon.why(job) == (
        "waits for 1 gpus (0 free); GPU-a is not lent: lost; GPU-b is not lent: its driver asks for gpu_reset"
    )
    _with(host)
    host.wait(1)
    assert host.state(job) == "running"


def test_what_jobs_hold_is_not_free(host: Host) -> None:
    job = host.submit()
    host.workshop.needs_of[job] = Needs(1.0, 1024**3, gpus=1, vendor="nvidia")
    host.settle()
    left = free(host.daemon.world, [host.row(job)])
    assert (left.cpus, [uuid for uuid, _ in left.devices]) == (3.0, ["GPU-b"])


def test_whoever_waits_for_something_else_is_told_nothing_about_devices(host: Host) -> None:
    _with(host, GPU_a="lost")
    job = host.submit()
    host.workshop.needs_of[job] = Needs(99.0, 1024**3)
    host.settle()
    assert host.daemon.why(job) == "waits for 99 cpus (4 free)"


def test_what_is_lacking_is_said_as_it_would_be_to_a_job(host: Host) -> None:
    now = host.clock.now()
    assert lacks(host.daemon.world, (), Needs(1.0, 1024**3), now) == ""
    assert lacks(host.daemon.world, (), Needs(99.0, 1024**3), now) == "waits for 99 cpus (4 free)"


def test_what_runs_is_known_by_the_revision_that_it_began_with(host: Host) -> None:
    job = host.submit()
    host.settle()
    before, now = host.row(job), host.clock.now()
    assert as_begun(host.daemon.world, before) is before
    half = timedelta(seconds=30)
    kept = RevisionApplied(now, "ann", 2, OTHER, Verb.KEEP, "why", before.job.history, half, None, 9)
    host.daemon.happen(before, kept)
    after = host.row(job)
    assert (after.revision, as_begun(host.daemon.world, after).revision) == (OTHER, before.revision)
