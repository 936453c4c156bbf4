"""The kernel's counters are found in control groups of both versions, and in /proc."""

from pathlib import Path

import pytest

from runner.adapters.host.disk_counters import PAGE_BYTES, TICKS_PER_S, HostDiskCounters
from runner.core.ports.disk import DiskCounters, NoDiskUse
from runner.core.ports.executor import Alive, Key

ID = "a" * 64
KEY = Key("i", "1", 1)
CONTAINER = Alive(KEY, container=ID)


class Host:
    """Made-up trees of control groups and of processes."""

    def __init__(self, root: Path) -> None:
        self.cgroups, self.processes = root / "cgroup", root / "proc"
        self.cgroups.mkdir()
        self.processes.mkdir()
        self.counters = HostDiskCounters(self.cgroups, self.processes)

    def group(self, place: str, **files: str) -> None:
        directory = self.cgroups / place
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("__", ".")).write_text(text)

    def process(self, pid: int, read: int, written: int, cancelled: int = 0, session: int = 1) -> None:
        directory = self.processes / str(pid)
        directory.mkdir()
        lines = (
            "rchar: 99",
            f"read_bytes: {read}",
            f"write_bytes: {written}",
            f"cancelled_write_bytes: {cancelled}",
        )
        (directory / "io").write_text("\n".join(lines) + "\n")
        (directory / "stat").write_text(f"{pid} (a) b) S 1 {pid} {session} 0 -1\n")

    def of(self, alive: Alive = CONTAINER) -> DiskCounters | None:
        return self.counters.counters([alive]).get(alive.key)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_memory_and_processors_are_those_of_all_processes(host: Host) -> None:
    for pid, pages in ((7, 100), (8, 50)):
        host.process(pid, read=1, written=1)
        fields = " ".join(
            ["S", "1", str(pid), "7", "0", "-1", *["0"] * 5, "150", "50", "30", "20", *["0"] * 6, str(pages)]
        )
        (host.processes / str(pid) / "stat").write_text(f"{pid} (a) b) {fields} 0\n")
    found = host.of(Alive(KEY, pid=7))
    assert found is not None
    assert (found.resident_bytes, found.cpu_s) == (150 * PAGE_BYTES, 500 / TICKS_PER_S)


@pytest.mark.parametrize(
    "place", [f"docker/{ID}", f"system.slice/docker-{ID}.scope", f"machine.slice/libpod-{ID}.scope"]
)
def test_version_2_counts_each_device(host: Host, place: str) -> None:
    host.group(
        place,
        io__stat="8:0 rbytes=100 wbytes=20 rios=3 wios=1 dbytes=0 dios=0\n"
        "8:16 rbytes=1 wbytes=2 rios=1 wios=1\n",
        cgroup__procs="",
    )
    assert host.of() == DiskCounters(101, 22)


def test_version_1_counts_each_device(host: Host) -> None:
    text = "8:0 Read 100\n8:0 Write 20\n8:0 Sync 5\n8:16 Read 1\n8:16 Write 2\nTotal 123\n"
    host.group(f"blkio/docker/{ID}", blkio__throttle__io_service_bytes_recursive=text)
    assert host.of() == DiskCounters(101, 22)


def test_an_older_version_1_has_the_file_of_the_group_alone(host: Host) -> None:
    host.group(f"blkio/docker/{ID}", blkio__throttle__io_service_bytes="8:0 Read 7\n8:0 Write 3\nTotal 10\n")
    assert host.of() == DiskCounters(7, 3)


def test_where_the_group_counts_nothing_its_processes_do(host: Host) -> None:
    """Version 1 does not see what is written later, nor some devices."""
    host.group(
        f"blkio/docker/{ID}",
        blkio__throttle__io_service_bytes_recursive="Total 0\n",
        cgroup__procs="11\n12\n13\n",
    )
    host.process(11, read=100, written=50, cancelled=10)
    host.process(12, read=5, written=0, cancelled=3)
    assert host.of() == DiskCounters(105, 40)


def test_of_both_counts_the_larger_holds(host: Host) -> None:
    host.group(f"docker/{ID}", io__stat="8:0 rbytes=10 wbytes=500\n", cgroup__procs="11\n")
    host.process(11, read=100, written=50)
    assert host.of() == DiskCounters(100, 500)


def test_a_container_whose_group_is_elsewhere_has_no_counters(host: Host) -> None:
    assert host.of() is None


@pytest.mark.parametrize("text", ["", "read_bytes: x\nwrite_bytes: 1\n", "nonsense\n"])
def test_what_cannot_be_read_is_unknown(host: Host, text: str) -> None:
    host.group(f"docker/{ID}", cgroup__procs="11\nnot a number\n")
    (host.processes / "11").mkdir()
    (host.processes / "11" / "io").write_text(text)
    assert host.of() is None


def test_a_plain_process_counts_with_its_session(host: Host) -> None:
    host.process(20, read=1, written=2, session=20)
    host.process(21, read=10, written=20, session=20)
    host.process(22, read=100, written=200, session=22)
    (host.processes / "23").mkdir()  # ended while it was looked at
    (host.processes / "meminfo").mkdir()
    (host.processes / "24").mkdir()
    (host.processes / "24" / "stat").write_text("24 (x) S\n")
    assert host.of(Alive(KEY, pid=20)) == DiskCounters(11, 22)
    assert host.of(Alive(KEY, pid=99)) is None
    assert host.of(Alive(KEY)) is None


def test_attempts_are_counted_apart(host: Host) -> None:
    other = Key("i", "2", 1)
    host.group(f"docker/{ID}", io__stat="8:0 rbytes=10 wbytes=500\n")
    host.process(20, read=1, written=2, session=20)
    assert host.counters.counters([CONTAINER, Alive(other, pid=20)]) == {
        KEY: DiskCounters(10, 500),
        other: DiskCounters(1, 2),
    }


def test_of_attempts_that_run_elsewhere_nothing_is_known() -> None:
    assert NoDiskUse().counters([CONTAINER]) == {}


NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo:  999 0 0 0 0 0 0 0  999 0 0 0 0 0 0 0
  eth0: 1000 7 0 0 0 0 0 0   20 3 0 0 0 0 0 0
  eth1:  500 7 0 0 0 0 0 0    1 3 0 0 0 0 0 0
"""


def test_traffic_is_that_of_interfaces_of_its_own(host: Host) -> None:
    host.group(f"docker/{ID}", io__stat="8:0 rbytes=1 wbytes=1\n", cgroup__procs="7\n")
    host.process(7, read=1, written=1)
    for process, namespace in (("7", "net:[2]"), ("self", "net:[1]")):
        (host.processes / process / "ns").mkdir(parents=True)
        (host.processes / process / "ns" / "net").symlink_to(namespace)
    (host.processes / "7" / "net").mkdir()
    (host.processes / "7" / "net" / "dev").write_text(NET_DEV)
    found = host.of()
    assert found is not None
    assert (found.received_bytes, found.sent_bytes) == (1500, 21)
    (host.processes / "7" / "ns" / "net").unlink()
    (host.processes / "7" / "ns" / "net").symlink_to("net:[1]")
    shared = host.of()
    assert shared is not None
    assert (shared.received_bytes, shared.sent_bytes) == (None, None)
