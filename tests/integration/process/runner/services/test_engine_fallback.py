"""A daemon that finds no engine, and what its users are told."""

from pathlib import Path

from tests.fakes.daemon.service import service


def test_who_gets_plain_processes_because_no_engine_answers_is_told_at_submission(tmp_path: Path) -> None:
    with service(executor="auto", engine=f"unix://{tmp_path}/none.sock") as daemon:
        daemon.start()
        file = daemon.file("quick", workload={"kind": "program", "command": ["true"]})
        (warning,) = daemon.answer("submit", str(file), "--dry-run", "--json")["warnings"]
        assert warning.startswith("runs as a plain process with ")
        assert "the container engine does not answer" in warning
        assert "executor: process" in warning
