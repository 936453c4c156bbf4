"""The devices of a dry run: those of now, or those of an idle machine."""

from runner.core.scheduler.device_preview import DevicePreview, preview_devices
from runner.core.scheduler.snapshot import DeviceState, Snapshot
from tests.fakes.host.directories import NOW_S, devices, gpus, host, out, running, waiting


def test_a_job_that_would_start_gets_free_devices() -> None:
    queue = Snapshot(NOW_S, (host(),), running=(running("r", ["h-0"], hours=2),))
    assert preview_devices(queue, waiting("0", gpus(2))) == DevicePreview(("h-2", "h-3"))


def test_a_job_that_would_wait_is_shown_those_of_an_idle_machine() -> None:
    own = (*devices(3), out(devices(4)[3], DeviceState.DRAINED, "by root"))
    queue = Snapshot(NOW_S, (host(own=own),), running=(running("r", ["h-0", "h-1"], hours=2),))
    found = preview_devices(queue, waiting("0", gpus(3)))
    assert found.devices == ("h-0", "h-1", "h-2")
    assert found.waits_for.startswith("waits for 3 GPUs: 1 free")


def test_jobs_that_wait_already_come_first() -> None:
    queue = Snapshot(NOW_S, (host(),), (waiting("5", gpus(4), age_s=99),))
    found = preview_devices(queue, waiting("0", gpus(4)))
    assert (len(found.devices), bool(found.waits_for)) == (4, True)


def test_a_job_that_fits_nowhere_gets_none() -> None:
    own = tuple(out(each, DeviceState.DRAINED, "by root") for each in devices(4))
    found = preview_devices(Snapshot(NOW_S, (host(own=own),)), waiting("0", gpus(1)))
    assert found.devices == ()
    assert found.waits_for
