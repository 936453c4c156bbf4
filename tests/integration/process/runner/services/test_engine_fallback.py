"""A daemon whose engine is down when it starts, and what its users are told."""

from pathlib import Path

from tests.fakes.daemon.service import service, until


def test_a_job_waits_for_an_engine_that_is_down_and_its_user_is_told(tmp_path: Path) -> None:
    with service(executor="auto", engine=f"unix://{tmp_path}/none.sock") as daemon:
        daemon.start()
        until(lambda: "executor.unavailable" in daemon.daemon_log(), "the daemon has asked for the engine")
        file = daemon.file("quick", workload={"kind": "program", "command": ["true"]})
        answer = daemon.answer("submit", str(file), "--json")
        (warning,) = answer["warnings"]
        assert warning.startswith("waits until the container engine answers: ")
        assert "executor: process" in warning
        job_id = answer["job"]["id"]
        until(lambda: "does not answer" in daemon.runner("why", job_id), "why names the engine")
        assert daemon.job(job_id)["attempts"] == []
        daemon.runner("cancel", job_id)
