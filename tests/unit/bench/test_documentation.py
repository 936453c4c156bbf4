"""Statements of bench/README.md, compared with what is measured."""

from pathlib import Path

import pytest

from bench.__main__ import BENCHES
from bench.cases import (
    burst,
    dashboard,
    data_parallel,
    decide,
    dispatch,
    growth,
    idle_daemon,
    latency,
    loader_memory,
    long_queue,
    overhead,
    post,
    snapshot,
    stall,
)
from bench.support.scratch import Effort

PAGE = (Path(__file__).parents[3] / "bench/README.md").read_text()


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_is_explained(name: str) -> None:
    assert f"\n## `{name}`" in PAGE


@pytest.mark.parametrize(
    "aim",
    [
        f"≤ {post.AIM_MS:g} ms",
        f"≤ {decide.AIM_MS:g} ms",
        f"≤ {idle_daemon.AIM_IMPORTS:g} \N{MULTIPLICATION SIGN}",
        f"≤ {idle_daemon.AIM_HISTORY:g} \N{MULTIPLICATION SIGN}",
        f"≤ {idle_daemon.AIM_MEMORY_MIB:g} MiB",
        f"≤ {idle_daemon.AIM_IDLE_PERCENT:g} %",
        f"{Effort().finished_jobs:,} finished jobs",
        f"a daemon with {Effort().grown_jobs:,} finished jobs",
        f"≤ {growth.AIM:g} \N{MULTIPLICATION SIGN}",
        f"`python -m bench soak --for {Effort().soak_s / 3600:g}h`",
        f"≤ {overhead.AIM_BY_HAND:g} \N{MULTIPLICATION SIGN} the loop by hand",
        f"≤ {overhead.AIM_FRAMEWORKS:g} \N{MULTIPLICATION SIGN} either framework",
        f"≤ {stall.AIM_PERCENT:g} % with saves in the background",
        f"one checkpoint every {stall.EVERY} steps",
        f"aim: ≥ {dispatch.AIM_PER_S:g} jobs/s",
        f"aim: ≤ {dispatch.AIM_RATIO:g} \N{MULTIPLICATION SIGN}",
        f"{Effort().dispatched} jobs wait behind one",
        f"{Effort().burst} jobs whose command is `true`",
        burst.TUNING[0],
        f"p50 ≤ {latency.AIM_MS:g} ms",
        f"the exact tree of sums (aim: ≤ {data_parallel.AIM_EXACT:g} \N{MULTIPLICATION SIGN})",
        f"`reduction: fast` (aim: ≤ {data_parallel.AIM_FAST:g} \N{MULTIPLICATION SIGN})",
        f"beside `git status` there (aim: ≤ {snapshot.AIM_RATIO:g} \N{MULTIPLICATION SIGN})",
        f"a git repository of {Effort().code_files:,} files",
        f"a submission while {Effort().queued:,} jobs wait",
        f"{Effort().followers} clients follow",
        f"200 of {Effort().listed:,} waiting jobs",
        f"Aim: ≤ {long_queue.AIM_RATIO:g} \N{MULTIPLICATION SIGN} each",
        f"beside `GET /v1/version` (aim: ≤ {dashboard.AIM_PAGE:g} \N{MULTIPLICATION SIGN})",
        f"a static table of its {dashboard.WAITING} rows (≤ {dashboard.AIM_LIST:g} \N{MULTIPLICATION SIGN})",
        f"{dashboard.OPEN} open dashboards, each a process of its own (≤ {dashboard.AIM_PERCENT:g} %",
        f"{dashboard.SERIES} curves of {Effort().points:,} points",
        f"to the end of painting (≤ {dashboard.AIM_PAINTED_MS:g} ms)",
        f"over the {Effort().epochs} epochs ≤ {loader_memory.AIM_PERCENT:g} %",
    ],
)
def test_the_page_names_the_aims_that_are_measured_against(aim: str) -> None:
    assert aim in PAGE
