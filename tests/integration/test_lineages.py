"""A program that saves its own checkpoints in its home, in one lineage and in the next."""

from collections.abc import Iterator

import pytest

from tests.fakes.daemon.service import Service, service

COUNT = """\
test -e "$HOME/step" && echo "resumed" || echo "begins"
echo 1 > "$HOME/step"; echo kernel >> "$XDG_CACHE_HOME/kernels"; wc -l < "$XDG_CACHE_HOME/kernels"
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


def test_a_restart_from_scratch_does_not_find_the_programs_own_checkpoint(daemon: Service) -> None:
    workload = {"kind": "program", "command": ["/bin/sh", "-c", COUNT]}
    job_id = daemon.submit(daemon.file("count", workload=workload))
    daemon.ends(job_id)
    for source in ("checkpoint", "scratch"):
        daemon.runner("restart", job_id, "--from", source)
        daemon.ends(job_id)
    heard = [daemon.log(job_id, attempt).split() for attempt in (1, 2, 3)]
    assert heard == [["begins", "1"], ["resumed", "2"], ["begins", "3"]]


def test_after_a_restart_from_scratch_the_earlier_lineage_can_be_gone_back_to(daemon: Service) -> None:
    workload = {"kind": "program", "command": ["/bin/sh", "-c", COUNT]}
    job_id = daemon.submit(daemon.file("back", workload=workload))
    daemon.ends(job_id)
    assert "lineage" not in daemon.runner("show", job_id)
    daemon.runner("restart", job_id, "--from", "scratch")
    daemon.ends(job_id)
    assert "2 of 2; runner restart --lineage N back goes on in another" in daemon.runner("show", job_id)
    assert "in lineage 1" in daemon.runner("restart", job_id, "--lineage", "1")
    daemon.ends(job_id)
    assert daemon.log(job_id, 3).split() == ["resumed", "3"]
    assert daemon.job(job_id)["attempts"][-1]["lineage"] == 1
    refused = daemon.runner("restart", job_id, "--lineage", "3", code=3)
    assert "no lineage 3; it has lineages 1 to 2; nothing was changed" in refused
    assert "leave out the number" in daemon.runner(
        "restart", job_id, "--from", "scratch", "--lineage", "1", code=2
    )
