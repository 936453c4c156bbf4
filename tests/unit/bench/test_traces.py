"""The made-up traces have the statistics of their sources, and the table says what misses its aim."""

import random
from collections import Counter
from pathlib import Path
from statistics import fmean, median

import pytest

from bench import traces
from bench.support.machine import Machine
from runner.services.simulation import formats

MACHINE = Machine("a processor", 2, 4.0, "6", "none", "3.11", 0.0)


def test_a_made_up_trace_has_the_statistics_of_its_cluster() -> None:
    helios = traces.make_up("helios", 1, 20_000)
    assert median(each.duration_s for each in helios) == pytest.approx(traces.HELIOS_MEDIAN_S, rel=0.1)
    assert fmean(each.duration_s for each in helios) == pytest.approx(traces.HELIOS_MEAN_S, rel=0.25)
    philly = traces.make_up("philly", 1, 20_000)
    gpus = Counter(each.request.gpus for each in philly)
    assert [gpus[count] / len(philly) for count in (1, 2, 4, 8)] == pytest.approx(
        [0.7, 0.1, 0.15, 0.05], abs=0.01
    )
    long = [each for each in philly if each.duration_s > 60_000]
    assert len(long) / len(philly) == pytest.approx(0.2, abs=0.01)
    assert (
        traces.make_up("philly", 1, 50) == traces.make_up("philly", 1, 50) != traces.make_up("philly", 2, 50)
    )


def test_all_loads_and_sizes_are_simulated_and_a_published_file_is_called_so(tmp_path: Path) -> None:
    head = "job_id,user,gpu_num,submit_time,duration\n"
    rows = (f"{number},u1,1,2020-06-0{1 + number} 10:00:00,{60 + number}\n" for number in range(9))
    path = tmp_path / "cluster_log.csv"
    path.write_text(head + "".join(rows))
    found = list(traces.cells({"helios": path}, 20, 30.0))
    assert Counter((each.trace, each.published) for each in found) == {
        ("philly", False): 9,
        ("helios", True): 9,
    }
    assert {(each.hosts, each.load) for each in found} == {
        (hosts, load) for hosts in traces.HOSTS for load in traces.LOADS
    }
    assert {len(each.jobs) for each in found} == {20, 9}


def test_results_are_a_table_with_marks_and_a_figure(tmp_path: Path) -> None:
    dice = random.Random(3)  # noqa: S311 - no secret
    jobs = traces.make_up("helios", dice.randrange(9), 60)
    scaled = formats.scaled_to_load(sorted(jobs, key=lambda each: each.submitted_s), 8, 0.8)
    found = traces.simulate(traces.Cell("helios", published=False, jobs=tuple(scaled), load=0.8, hosts="1x8"))
    assert (found["devices"], found["jobs"], set(found["orders"])) == (8, 60, set(traces.NAMES))
    value = found["orders"]["attained"]["mean_slowdown"] / found["orders"]["oracle"]["mean_slowdown"]
    assert found["by_oracle"] == {"value": value, "aim": 1.5, "met": value <= 1.5}
    missed = {**found, "switching": {"value": 0.04, "aim": 0.03, "met": False}}
    row = traces.table([missed]).splitlines()[-1]
    assert row.startswith("| helios, made up | 0.8 | 8 | ")
    assert "| **4.00%** |" in row
    traces.draw([found], MACHINE, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
