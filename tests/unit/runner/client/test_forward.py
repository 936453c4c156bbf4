"""Owner of a connection of the loopback."""

import pytest

from runner.client.forward import is_of_user

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1771 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 101 1 0
   1: 0100007F:C350 0100007F:1771 01 00000000:00000000 00:00000000 00000000  1000        0 102 1 0
   2: 0100007F:1771 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 103 1 0
   3: 0100007F:C351 0100007F:1771 01 00000000:00000000 00:00000000 00000000  1001        0 104 1 0
   4: 0100007F:C352 0100007F:1771 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   5: 0100007F:C353 0100007F:1771 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0
"""
LOCAL = ("127.0.0.1", 0x1771)


@pytest.mark.parametrize(
    ("port", "uid", "is_theirs"),
    [
        (0xC350, 1000, True),
        (0xC351, 1000, False),  # another user's
        (0xC351, 1001, True),
        (0xC352, 0, False),  # closed by its process: the kernel shows root
        (0xC353, 0, False),  # the same, and not yet closed by the other end
        (0xC399, 1000, False),  # gone from the table
    ],
)
def test_only_a_connection_that_a_process_of_the_user_holds_counts(
    port: int,
    uid: int,
    is_theirs: bool,  # noqa: FBT001
) -> None:
    assert is_of_user(("127.0.0.1", port), LOCAL, uid, TABLE) == is_theirs
