"""The directory that keeps the user of a job from a file."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.process.reach import closed_directory
from runner.core.ports.executor import Key, LaunchRefused, LaunchRequest, Limits
from runner.core.ports.users import Owner

STRANGER = Owner(54_321, 54_321, "ann")


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory that everybody can reach, unlike those of pytest."""
    path = Path(tempfile.mkdtemp(prefix="reach-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize(("mode", "closed"), [(0o700, True), (0o750, True), (0o711, False), (0o755, False)])
def test_a_directory_that_others_may_not_enter_is_closed_to_them(
    place: Path, mode: int, *, closed: bool
) -> None:
    (place / "home/bin").mkdir(parents=True)
    (place / "home").chmod(mode)
    wanted = place / "home/bin/python"
    assert closed_directory(wanted, STRANGER) == (place / "home" if closed else None)
    assert closed_directory(wanted, Owner(os.geteuid(), os.getegid(), "me")) is None
    in_group = closed_directory(wanted, Owner(54_321, os.getegid(), "eve"))
    assert in_group == (place / "home" if mode == 0o700 else None)


def test_a_link_leads_to_where_it_points(place: Path) -> None:
    (place / "home").mkdir(mode=0o700)
    (place / "home/python").touch()
    (place / "venv").symlink_to(place / "home/python")
    assert closed_directory(place / "venv", STRANGER) == place / "home"


def test_what_is_not_there_is_nobodys_fault(place: Path) -> None:
    assert closed_directory(place / "a/b/c", STRANGER) is None


@pytest.mark.parametrize("what", ["program", "directory"])
def test_a_launch_that_cannot_be_reached_is_refused_with_the_directory(
    place: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # a daemon of root
    (place / "home/job").mkdir(parents=True)
    (place / "home").chmod(0o700)
    monkeypatch.setattr("runner.adapters.process.reach._may_enter", lambda path, _: path.name != "home")
    program, run_dir = place / "home/python", place
    if what == "directory":
        program, run_dir = place / "python", place / "home/job"
    request = LaunchRequest(
        key=Key("i1", "j1", 1),
        job_name="n",
        owner=STRANGER,
        image="none",
        argv=(str(program), "train.py"),
        run_dir=run_dir,
        log=place / "log",
        limits=Limits(1.0, 2**30),
    )
    with pytest.raises(
        LaunchRefused, match=r"^uid 54321, as which it runs, may not enter '.*/home', on the way"
    ):
        ProcessExecutor(ProcessSettings("i1", place / "records")).launch(request)
