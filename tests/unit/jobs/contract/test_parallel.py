"""Processes that share a training, as the spec says it, and the files that each of them writes."""

from pathlib import Path

import pytest

from jobs.contract import Parallel, RankPaths, RunPaths


@pytest.mark.parametrize(
    ("parallel", "shares"),
    [
        (Parallel(), 1),
        (Parallel(processes=4, shards=8), 8),
        (Parallel(processes=1, shards=8), 8),
        (Parallel(processes=4, reduction="fast"), 4),
    ],
)
def test_with_shards_the_threads_do_not_depend_on_the_processes(parallel: Parallel, shares: int) -> None:
    assert parallel.cpu_shares == shares
    assert parallel.is_plain == (shares == 1)


def test_a_process_that_does_not_lead_reports_apart_and_reads_the_same_spec() -> None:
    leader, other = RunPaths(Path("/job"), 2, 1), RankPaths(Path("/job"), 2, 1, 3)
    assert other.result == leader.attempt_dir / "rank-3.result.json"
    assert other.spec == leader.spec
    assert leader.rank_log(3) == leader.attempt_dir / "rank-3.log.txt"
    assert leader.rank_log(0) == leader.log
