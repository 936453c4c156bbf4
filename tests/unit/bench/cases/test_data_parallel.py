"""Reports of the processes of the data-parallel measurement become two lines, or a reason why not."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.cases import data_parallel
from bench.support.result import CannotMeasure, Result
from bench.support.scratch import QUICK, Scratch


def scratch(tmp_path: Path) -> Scratch:
    return Scratch(QUICK, tmp_path)


def replicas(monkeypatch: pytest.MonkeyPatch, *digests: str) -> None:
    names = ("exact", "fast", "by hand")
    seconds = {name: [9.0] * QUICK.warmups + [0.1 * (1 + place)] for place, name in enumerate(names)}
    found: dict[str, Any] = {"seconds": seconds, "weights": dict(zip(names, digests, strict=True))}
    monkeypatch.setattr(data_parallel, "run_replicas", lambda *_: found)


def test_each_way_is_compared_with_the_loop_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas(monkeypatch, "a", "a", "a")
    lines = list(data_parallel.measure(scratch(tmp_path)))
    assert [line.ours.p50 for line in lines if isinstance(line, Result)] == pytest.approx([100, 200])
    assert [line.met for line in lines if isinstance(line, Result)] == [True, True]


def test_other_weights_are_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas(monkeypatch, "a", "a", "b")
    with pytest.raises(CannotMeasure, match="different weights"):
        list(data_parallel.measure(scratch(tmp_path)))


def test_the_processes_get_one_shard_each() -> None:
    spec = data_parallel.make_spec(10)
    assert (spec.parallel.processes, spec.parallel.shards) == (data_parallel.PROCESSES,) * 2


def test_processes_that_fail_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failed:
        returncode, stdout, stderr = 3, "one\nlast words\n", ""

    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Failed)
    with pytest.raises(CannotMeasure, match="exit code 3: last words"):
        data_parallel.run_replicas(tmp_path, 1, 1)
