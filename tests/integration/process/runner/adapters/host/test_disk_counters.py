"""A process that writes and reads is counted by the kernel."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.adapters.host.disk_counters import HostDiskCounters
from runner.core.ports.executor import Alive, Key
from tests.fakes.workloads.writer import on_a_disk

KEY = Key("i", "1", 1)
MIB = 1024**2
WRITER = """
import os, subprocess, sys
child = "import os; f = open(os.sys.argv[1], 'wb'); f.write(bytes(8 << 20)); f.flush(); os.fsync(f.fileno())"
subprocess.run([sys.executable, "-c", child, sys.argv[1] + ".child"], check=True)
with open(sys.argv[1], "wb") as file:
    file.write(bytes(16 << 20))
    file.flush()
    os.fsync(file.fileno())
print("written", flush=True)
sys.stdin.read()
"""


def test_what_a_process_and_its_ended_child_have_written_is_counted() -> None:
    with (
        on_a_disk() as place,
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(place / "file")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as writer,
    ):
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        found = HostDiskCounters().counters([Alive(KEY, pid=writer.pid)])
        assert found[KEY].written_bytes >= 24 * MIB
        assert found[KEY].read_bytes >= 0
        writer.communicate()
    assert HostDiskCounters().counters([Alive(KEY, pid=writer.pid)]) == {}


def test_a_look_at_many_attempts_is_one_pass_over_the_processes_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, every = [], Path.iterdir

    def noted(place: Path) -> Iterator[Path]:
        passes.append(place)
        return every(place)

    monkeypatch.setattr(Path, "iterdir", noted)
    attempts = [Alive(Key("i", str(number), 1), pid=os.getpid() + number) for number in range(1, 500)]
    HostDiskCounters(tmp_path).counters(attempts)
    assert passes == [Path("/proc")]
