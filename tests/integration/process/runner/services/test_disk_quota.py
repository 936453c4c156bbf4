"""A job that fills the disk, or its inodes, is held with the reason."""

from collections.abc import Iterator

import pytest

from tests.fakes.daemon.service import Service, service

WAITS = "trap 'exit 0' TERM; while test -d $RUNNER_JOB_DIR; do sleep 0.05; done"


@pytest.fixture
def daemon() -> Iterator[Service]:
    with service(
        executor="process",
        disk_quota={"files_per_job": 300, "bytes_per_job": 4_000_000, "files_per_user": 600, "every_s": 0.1},
    ) as made:
        yield made.start()


def program(daemon: Service, name: str, script: str) -> str:
    workload = {"kind": "program", "command": ["/bin/sh", "-c", f"cd $RUNNER_JOB_DIR/cache; {script}"]}
    file = daemon.file(name, workload=workload, resources={"cpus": 1, "memory": "64MiB"})
    return daemon.submit(file, end="cancelled")


def why(daemon: Service, job_id: str) -> str:
    return str(daemon.reaches(job_id, "held")["why"])


def test_a_job_with_too_many_empty_files_is_held_and_goes_on_when_they_are_removed(daemon: Service) -> None:
    script = f"test -e once || (touch once; seq 400 | sed s/^/f/ | xargs touch); echo ready; {WAITS}"
    job_id = program(daemon, "files", script)
    assert "held by the disk quota: its directory has more than 300 files (disk_quota.files_per_job)" in why(
        daemon, job_id
    )
    for path in (daemon.state / "jobs" / job_id / "cache").glob("f*"):
        path.unlink()
    daemon.runner("release", job_id)
    daemon.runs(job_id, "ready", attempt=2)
    daemon.runner("cancel", job_id)


def test_a_job_that_takes_too_many_bytes_is_held_and_a_sparse_file_takes_none(daemon: Service) -> None:
    sparse = program(daemon, "sparse", f"truncate -s 8T hole; echo ready; {WAITS}")
    large = program(daemon, "large", f"head -c 5000000 /dev/zero > full; echo ready; {WAITS}")
    assert "more than 4MB (disk_quota.bytes_per_job)" in why(daemon, large)
    daemon.reaches(sparse, "running")
    daemon.runner("cancel", sparse, large)


def test_a_user_with_too_many_files_in_all_jobs_has_the_largest_held(daemon: Service) -> None:
    fill = "seq 220 | sed s/^/f/ | xargs touch; echo ready; "
    for name in ("first", "second"):
        daemon.jobs[job := program(daemon, name, fill + "exit 0")] = "succeeded"
        daemon.ends(job)
    last = program(daemon, "last", fill + WAITS)
    assert "the directories of its owner's jobs have more than 600 files" in why(daemon, last)
    daemon.runner("cancel", last)
