"""Address of the dashboard."""

import os
import socket
import stat
from pathlib import Path

import pytest

from runner.base.errors import Unavailable, UsageError
from runner.dashboard.listen import USUAL_NAME, Address, listening, parse_address, usual_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8433", Address(None, "127.0.0.1", 8433)),
        ("0.0.0.0:80", Address(None, "0.0.0.0", 80)),  # noqa: S104  what an operator types
        ("[::1]:8433", Address(None, "::1", 8433)),
        ("/run/x.sock", Address(Path("/run/x.sock"))),
    ],
)
def test_an_address_is_a_port_a_host_or_a_path(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "host:", "127.0.0.1:99999", "-1"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give a port"):
        parse_address(text)


def test_one_s_own_machine_has_its_loopback_and_a_shared_one_a_socket(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert usual_address(environ, shared=False) == Address()
    for shared, known in ((True, environ), (False, {**environ, "SSH_CONNECTION": "x"})):
        assert usual_address(known, shared=shared).path == tmp_path / "runner-dash.sock"


def test_only_the_user_may_open_the_socket_and_it_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "own" / USUAL_NAME
    with listening(Address(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(Unavailable, match="a dashboard listens there already"), listening(Address(path)):
            pass
    assert not path.exists()


def test_a_socket_that_was_left_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "dash.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with listening(Address(path)):
        pass
    path.write_text("mine")
    with pytest.raises(Unavailable, match="is no socket"), listening(Address(path)):
        pass
    assert path.read_text() == "mine"


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Unavailable, match="others may write to it"), listening(Address(tmp_path / "x.sock")):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to somebody else")
def test_a_link_of_somebody_else_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("own")
    os.chown(link, 4242, 4242, follow_symlinks=False)
    with pytest.raises(Unavailable, match="others may write to it"), listening(Address(link / "x.sock")):
        pass


def test_a_port_that_is_taken_is_named() -> None:
    with listening(Address()) as first:
        port = first.getsockname()[1]
        with (
            pytest.raises(Unavailable, match=f"127.0.0.1:{port}: Address already in use"),
            listening(Address(port=port)),
        ):
            pass
