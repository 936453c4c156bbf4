"""The share of the processors that a session has, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

AUTOGROUP: Final = Path("/proc/self/autogroup")
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a session more")
def test_a_process_that_leads_its_session_comes_first_where_sessions_have_shares() -> None:
    assert nice_of(leads=True) == (-10 if AUTOGROUP.exists() else 0)


def test_the_session_of_somebody_else_stays_as_it_is() -> None:
    assert nice_of(leads=False) == 0
