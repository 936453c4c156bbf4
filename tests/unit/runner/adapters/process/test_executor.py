"""Checks of the process executor before it starts anything."""

import os
from pathlib import Path

import pytest

from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.base.errors import Unavailable
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner


def test_a_device_that_the_hosts_torch_cannot_use_lets_the_job_wait(tmp_path: Path) -> None:
    settings = ProcessSettings("i1", tmp_path / "records", find_problem=lambda _: "driver 550 is too old")
    uid, gid = (os.getuid() or 65532), (os.getgid() or 65532)  # an attempt of root is refused in any case
    request = LaunchRequest(
        key=Key("i1", "j1", 1),
        job_name="n",
        owner=Owner(uid, gid, "u"),
        image="none",
        argv=("true",),
        run_dir=tmp_path,
        log=tmp_path / "log",
        limits=Limits(1.0, 2**30),
    )
    with pytest.raises(Unavailable, match=r"^runner-i1-j1-1: not started: driver 550 is too old$"):
        ProcessExecutor(settings).launch(request)
    assert list((tmp_path / "records").iterdir()) == []
