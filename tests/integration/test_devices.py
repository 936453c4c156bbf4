"""Devices of stand-in hosts through a real daemon: lent, intruded upon, lost, drained, divided, silent."""

import shutil
from pathlib import Path

import pytest

from tests.fakes.daemon.service import until
from tests.fakes.gpu.hosts import GIB, h100s, sliced_a100s
from tests.fakes.gpu.site import Site, site, stranger

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def test_a_device_from_the_first_look_to_the_proof_that_it_is_clean(tmp_path: Path) -> None:
    with site(tmp_path, h100s(4)) as here, stranger() as pid:
        here.host[0].say(procs=f"{pid}:{2 * GIB}", used=3 * GIB)
        here.say()
        foreign = here.reaches("GPU-0", "foreign")
        assert f"pid {pid}" in foreign["reason"]

        job_id = here.sleeper("sleeper", 2)
        here.daemon.reaches(job_id, "running")
        held = [name for name, each in here.gpus().items() if each["jobs"]]
        assert "GPU-0" not in held
        assert len(held) == 2
        first, second = (here.host[int(name.removeprefix("GPU-"))] for name in held)
        own = here.first_pid(job_id)
        first.say(procs=f"{own}:{20 * GIB}", used=21 * GIB)
        second.say(procs=f"{own}:{GIB},{pid}:{GIB}", used=3 * GIB)
        here.say()
        until(lambda: "also used by a foreign process" in here.daemon.told(job_id), "an alarm is raised")
        assert f"{held[1]} is also used by a foreign process (pid {pid}, " in here.daemon.told(job_id)
        assert f"{held[0]} is also used" not in here.daemon.told(job_id)

        second.say(procs=None, used=600 * 1024**2)
        first.say(procs=None)  # it has gone, and what it had in use has not
        here.say()
        here.daemon.runner("cancel", job_id)
        here.reaches(held[1], "free")
        assert "not clean 5s after job" in here.reaches(held[0], "quarantined")["reason"]
        assert "21 GiB in use by no process" in here.gpus()[held[0]]["reason"]
        here.daemon.runner("gpus", "resume", held[0])
        here.reaches(held[0], "free")


POLICY = """\
policy: 1
extends: default
on_watch:
  - {name: intruder, when: {device.intruder: true}, do: stop, why: somebody else is on its device}
"""


def test_a_policy_may_react_to_an_intruder(tmp_path: Path) -> None:
    with site(tmp_path, h100s(1), clean_within_s=60) as here, stranger() as pid:
        policy = here.daemon.root / "policy.yaml"
        policy.write_text(POLICY)
        job_id = here.sleeper("wary", policy=str(policy))
        here.daemon.reaches(job_id, "running")
        here.host[0].say(procs=f"{here.first_pid(job_id)}:{GIB},{pid}:{GIB}", used=3 * GIB)
        here.say()
        until(lambda: "somebody else is on its device" in here.daemon.told(job_id), "it is stopped")
        until(lambda: f"pid {pid}" in here.daemon.job(job_id)["why"], "it waits for the device")
        here.host[0].say(procs=None, used=600 * 1024**2)
        here.say()
        until(lambda: here.daemon.job(job_id)["attempt"] == 2, "it is resumed", more=here.daemon.log_tail)
        assert "attempt 1 is stopped by rule intruder of the policy" in here.daemon.told(job_id)
        here.daemon.runner("cancel", job_id)


def test_what_was_said_about_devices_outlives_a_killed_daemon(tmp_path: Path) -> None:
    with site(tmp_path, h100s(4)) as here:
        here.reaches("GPU-3", "free")
        job_id = here.sleeper("holds-one")
        here.daemon.reaches(job_id, "running")
        [held] = [name for name, each in here.gpus().items() if each["state"] == "allocated"]
        here.daemon.runner("gpus", "drain", "GPU-3", "--reason", "new fan")
        here.host[2].kind = "lost"
        here.say()
        here.reaches("GPU-2", "quarantined")
        here.daemon.kill()
        here.host[2].kind = "gpu"
        here.say()
        here.daemon.start()
        here.reaches(held, "allocated")
        states = {name: (each["state"], each["reason"]) for name, each in here.gpus().items()}
        assert states["GPU-3"] == ("drained", "new fan")
        assert states["GPU-2"] == ("quarantined", "it no longer answers")
        assert here.gpus()[held]["jobs"][0]["id"] == job_id
        here.daemon.runner("cancel", job_id)
        here.reaches(held, "free")


def test_a_gpu_is_divided_while_the_daemon_runs_and_its_slices_are_lent(tmp_path: Path) -> None:
    host = sliced_a100s(2, slices=0)
    with site(tmp_path, host) as here:
        here.reaches("GPU-1", "free")
        host.cards[1:1] = sliced_a100s(1, slices=2).cards[1:]
        host[0].said.pop("mig", None)
        host[0].say(error=15)  # the whole one is not there any more, which makes the daemon count anew
        here.say()
        until(lambda: "GPU-0:1" in here.gpus(), "the slices are there", more=here.daemon.log_tail)
        host[0].say(error=None)
        here.say()
        assert set(here.gpus()) == {"GPU-0:0", "GPU-0:1", "GPU-1"}
        assert {here.gpus()[name]["kind"] for name in ("GPU-0:0", "GPU-0:1")} == {"slice"}


@pytest.mark.parametrize("trouble", ["error 18 -", "error 9 -"])
def test_a_driver_that_does_not_match_or_is_away_costs_devices_and_not_the_daemon(
    tmp_path: Path, trouble: str
) -> None:
    host = h100s(2)
    with site(tmp_path, host) as here:
        here.reaches("GPU-1", "free")
        host.trouble = trouble
        here.say()
        assert "has not answered" in here.reaches("GPU-1", "dirty")["reason"]
        assert here.daemon.ends(_true(here))["outcome"] == "succeeded"
        host.trouble = ""
        here.say()
        here.reaches("GPU-1", "free")


def test_a_driver_that_hangs_from_the_start_keeps_no_job_without_devices_waiting(tmp_path: Path) -> None:
    host = h100s(2)
    host.trouble = "hang init -"
    with site(tmp_path, host) as here:
        assert here.gpus() == {}
        assert here.daemon.ends(_true(here))["outcome"] == "succeeded"


def _true(here: Site) -> str:
    file = here.daemon.file(
        "true",
        workload={"kind": "program", "command": ["true"]},
        accelerator="cpu",
        resources={"cpus": 1, "memory": "64MiB"},
    )
    return here.daemon.submit(file)


FAILS_ON = """\
case "$CUDA_VISIBLE_DEVICES" in
*{uuid}*) echo "RuntimeError: CUDA error: uncorrectable ECC error encountered" >&2; exit 1 ;;
esac
"""


def test_a_device_on_which_jobs_fail_that_run_elsewhere_is_quarantined_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    with site(tmp_path, h100s(2)) as here:
        for name in ("GPU-0", "GPU-1"):
            here.reaches(name, "free")
        sleeper = here.sleeper("which-is-first")
        [first] = here.daemon.reaches(sleeper, "running")["gpus"]
        here.daemon.runner("cancel", sleeper)
        [bad] = [name for name, each in here.gpus().items() if each["uuid"] == first]
        program = {"kind": "program", "command": ["sh", "-c", FAILS_ON.format(uuid=first)]}
        jobs = []
        for number in range(3):
            here.reaches(bad, "free")
            jobs.append(here.sleeper(f"fails-{number}", workload=program))
            here.daemon.jobs[jobs[-1]] = "succeeded"
            assert here.daemon.ends(jobs[-1])["attempt"] == 2
        told = here.reaches(bad, "quarantined")["reason"]
        assert told == (
            f"3 of its last 3 jobs failed here and ran elsewhere (jobs {', '.join(jobs)});"
            " on other devices 0 of 3 did"
        )
        here.daemon.runner("gpus", "resume", bad)
        here.reaches(bad, "free")
        again = here.sleeper("fails-again", workload=program)
        here.daemon.jobs[again] = "succeeded"
        here.daemon.ends(again)
        here.reaches(bad, "free")  # what was before the resume is no evidence
