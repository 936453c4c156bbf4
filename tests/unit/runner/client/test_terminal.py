"""Input at a terminal inside of a job, before it leaves this machine."""

import pytest

from runner.client.terminal import DetachKeys


@pytest.mark.parametrize(
    ("typed", "sent", "left"),
    [
        ([b"ls\r"], b"ls\r", False),
        ([b"\x10\x11"], b"", True),
        ([b"\x10", b"\x11"], b"", True),
        ([b"ab\x10\x11cd"], b"ab", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x10\x10", b"\x11"], b"\x10", True),
        ([b"\x11\x10", b"\x12"], b"\x11\x10\x12", False),
    ],
)
def test_ctrl_p_ctrl_q_leaves_and_everything_else_is_sent(
    typed: list[bytes],
    sent: bytes,
    left: bool,  # noqa: FBT001
) -> None:
    keys = DetachKeys()
    assert b"".join(map(keys.pass_on, typed)) == sent
    assert keys.pressed == left
