"""Output of ``runner dash``, and the link that it gives to a browser."""

import stat
import time
from contextlib import closing
from pathlib import Path
from socket import socket
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner

from runner.base.errors import UsageError
from runner.cli import dash as module
from runner.cli.main import cli
from runner.dashboard.access import Access
from runner.dashboard.listen import Address


def test_the_link_is_no_argument_of_the_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    access = Access(time.monotonic)
    with closing(socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        module._tell(access, Address(), listener, tmp_path, opens=True)
    link = capsys.readouterr().out.strip()
    ticket = link.partition("ticket=")[2]
    [argument] = opened
    assert ticket not in argument
    assert access.place not in argument
    page = Path(unquote(urlsplit(argument).path))
    assert link in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


@pytest.mark.parametrize("listen", [(), ("--listen", "8433"), ("--listen", "127.0.0.1:8433")])
def test_a_dashboard_without_a_login_is_at_no_port(listen: tuple[str, ...]) -> None:
    arguments = ["--read-only", "--behind-proxy", "jobs.example", *listen]
    found = CliRunner().invoke(cli, ["dash", *arguments])
    said = (
        "--behind-proxy: every user of this machine reaches a port; name the path of a socket with --listen\n"
    )
    assert (found.exit_code, found.output) == (UsageError.exit_code, said)
