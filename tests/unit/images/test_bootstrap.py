"""A base from Debian's archive: which command, and from where."""

from pathlib import Path

import pytest

from images.bootstrap import PACKAGES, Bootstrap, bootstrap, command, host_mirror
from images.errors import BuildFailed, HostFault
from images.log import BuildLog
from tests.fakes.engine.image_engine import FakeEngine

STANZAS = """Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main
"""


def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str, uid: int = 0) -> None:
    for name in names:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: uid)


def test_root_uses_debootstrap_and_checks_signatures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools(monkeypatch, tmp_path, "debootstrap", "mmdebstrap")
    argv = command("bookworm", Path("/r/root.tar"), "http://mirror.example/debian")
    assert "debootstrap" in argv
    assert "--force-check-gpg" in argv
    assert argv[-3:] == ["bookworm", "/r/root", "http://mirror.example/debian"]


def test_who_is_not_root_uses_mmdebstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools(monkeypatch, tmp_path, "debootstrap", "mmdebstrap", uid=1000)
    assert command("bookworm", Path("/r/root.tar"), None)[0] == "mmdebstrap"


def test_the_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools(monkeypatch, tmp_path)
    with pytest.raises(BuildFailed, match="neither debootstrap nor mmdebstrap is installed; install one"):
        command("bookworm", Path("/r/root.tar"), None)


def test_debootstrap_alone_needs_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tools(monkeypatch, tmp_path, "debootstrap", uid=1000)
    with pytest.raises(BuildFailed, match="be root or install mmdebstrap"):
        command("bookworm", Path("/r/root.tar"), None)


def test_a_base_carries_what_compiled_training_needs() -> None:
    assert {"gcc", "g++", "python3-dev", "python3-venv"} <= set(PACKAGES)


def test_the_hosts_own_mirror_is_used(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(STANZAS)
    assert host_mirror(tmp_path, "bookworm") == "http://mirror.example/debian"


@pytest.mark.parametrize(
    "line",
    [
        "deb http://mirror.example/debian bookworm main",
        "deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm contrib main",
    ],
)
def test_old_style_sources_are_read_too(tmp_path: Path, line: str) -> None:
    (tmp_path / "sources.list").write_text(f"# comment\ndeb-src http://no.example bookworm main\n{line}\n")
    assert host_mirror(tmp_path, "bookworm") == "http://mirror.example/debian"


def test_a_host_with_another_release_leaves_the_choice_to_the_tool(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://ubuntu.example/ubuntu noble main\n")
    assert host_mirror(tmp_path, "bookworm") is None


def test_an_archive_that_is_down_is_no_fault_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools(monkeypatch, tmp_path, "mmdebstrap", uid=1000)

    def run(log: BuildLog, argv: list[str]) -> None:
        log.line("E: no mirror answers")
        raise BuildFailed(f"{argv[0]}: exit code 100")

    monkeypatch.setattr(BuildLog, "run", run)
    with (
        BuildLog(tmp_path / "log") as log,
        pytest.raises(HostFault, match=r"^bootstrap: mmdebstrap: exit code 100: E: no mirror answers$"),
    ):
        bootstrap(FakeEngine(), Bootstrap(mirror="http://mirror.example"), log)
