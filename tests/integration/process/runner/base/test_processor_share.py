"""The share of the processors that a session has, in a process of its own."""

import subprocess
import sys
from typing import Final

TRIED: Final = """
from pathlib import Path

Path("/proc/self/autogroup").write_text("-10")
"""
PROGRAM: Final = """
import pathlib
from runner.base.processor_share import raise_share

raise_share()
found = pathlib.Path("/proc/self/autogroup")
print(found.read_text().split()[-1] if found.exists() else 0)
"""


def nice_of(*, leads: bool) -> int:
    """Return the nice value of the share of a process that leads its session, or is in that of another."""
    command = [sys.executable, "-c", PROGRAM]
    if not leads:
        command = ["setsid", "--wait", "sh", "-c", '"$@"; exit', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=leads)
    return int(done.stdout)


def may_have_more() -> bool:
    """Return True where sessions have shares and this user may give one more: root in a container may not."""
    command = [sys.executable, "-I", "-S", "-c", TRIED]
    return not subprocess.run(command, capture_output=True, check=False, start_new_session=True).returncode


def test_a_process_that_leads_its_session_comes_first_where_that_is_allowed() -> None:
    assert nice_of(leads=True) == (-10 if may_have_more() else 0)


def test_the_session_of_somebody_else_stays_as_it_is() -> None:
    assert nice_of(leads=False) == 0
