"""Records as the kernel writes them, and what a reader meets on the way."""

import errno
import os
from pathlib import Path

import pytest

from runner.adapters.gpu.xid import KernelLog, bus_address, recovery_action
from runner.core.devices.xid import Xid

LOST = (
    "2,1183,2502344,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)
NOISE = "6,1184,2502400,-;usb 1-1: new high-speed USB device\n SUBSYSTEM=usb\n DEVICE=c189:1\n"
RESET = (
    "4,1185,3000000,-;NVRM: Xid (PCI:0000:3b:00.0): 154, "
    "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
)


def test_xids_are_read_with_time_place_and_code(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(NOISE + LOST + NOISE + RESET)
    assert KernelLog(path).xids() == (
        Xid(2.502344, "0000:3b:00", 79),
        Xid(3.0, "0000:3b:00", 154, "node_reboot"),
    )


def test_a_second_look_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(LOST + RESET[:40])
    log = KernelLog(path)
    assert [xid.code for xid in log.xids() or ()] == [79]
    with path.open("a") as file:
        file.write(RESET[40:])
    assert [xid.code for xid in log.xids() or ()] == [79, 154]
    log.close()
    log.close()


def test_an_action_that_is_not_named_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 154, something new\n")
    assert [xid.recovery for xid in KernelLog(path).xids() or ()] == [None]


def test_no_place_on_the_bus_no_xid(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("4,1,1,-;NVRM: Xid (PCI:...): 31, odd\n")
    assert KernelLog(path).xids() == ()


def test_a_log_that_may_not_be_read_is_unknown(tmp_path: Path) -> None:
    assert KernelLog(tmp_path / "absent").xids() is None


@pytest.mark.parametrize(("code", "known"), [(errno.EAGAIN, True), (errno.EIO, False)])
def test_nothing_new_is_no_error_and_an_error_is_unknown(tmp_path: Path, code: int, known: bool) -> None:  # noqa: FBT001
    def read(_: int, __: int) -> bytes:
        raise OSError(code, os.strerror(code))

    path = tmp_path / "kmsg"
    path.write_text("")
    assert (KernelLog(path, read).xids() is not None) is known


def test_records_that_were_overwritten_are_passed_over(tmp_path: Path) -> None:
    answers: list[bytes | None] = [None, LOST.encode(), b""]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0)
        if answer is None:
            raise OSError(errno.EPIPE, "overwritten")
        return answer

    path = tmp_path / "kmsg"
    path.write_text("")
    assert [xid.code for xid in KernelLog(path, read).xids() or ()] == [79]


@pytest.mark.parametrize("text", ["0000:3b:00", "00000000:3B:00.0", "0000:3b:00.0", " 0000:3B:00 "])
def test_places_on_the_bus_are_written_in_several_ways(text: str) -> None:
    assert bus_address(text) == "0000:3b:00"


def test_actions_that_nobody_knows_yet_are_the_most_careful_one() -> None:
    assert [recovery_action(each) for each in (0, 1, 2, 3, 4, 5, 6, 99)] == [
        *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
        *("node_reboot", "gpu_reset", "node_reboot"),
    ]
