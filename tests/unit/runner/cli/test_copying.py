"""An archive whose members were another thing when the next one was written stays within the copy."""

import io
import stat
import tarfile
from pathlib import Path

import pytest

from runner.adapters.host.archive import LEFT_OUT
from runner.base.errors import Unavailable, UsageError
from runner.cli import cp as module
from runner.cli.copying import Copy
from runner.client.http import StreamedBody

Member = tuple[str, str | bytes | None]
"""A name with the target of a link, the content of a file, or None for a directory."""


def packed(*members: Member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, said in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if said is None else tarfile.SYMTYPE
            if isinstance(said, bytes):
                info.type, info.size = tarfile.REGTYPE, len(said)
                archive.addfile(info, io.BytesIO(said))
                continue
            info.linkname = said or ""
            archive.addfile(info)
    return out.getvalue()


def copied(copy: Copy, *members: Member) -> bool:
    body = packed(*members)
    stream = StreamedBody(io.BytesIO(body), {"content-length": str(len(body))})
    return module._extract(stream, copy)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory with something beside the copy that is worth having."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "authorized_keys").write_text("mine")
    return tmp_path


@pytest.mark.parametrize(
    "members",
    [
        [(".", None), ("./d", "../.ssh"), ("./d/authorized_keys", b"evil")],
        [(".", None), ("./d", None), ("./d", "../.ssh"), ("./d/authorized_keys", b"evil")],
        [(".", None), ("./d/e/up", "../.."), ("./x", "d/e/up/../.ssh"), ("./x/authorized_keys", b"evil")],
        [(".", None), ("./x", "d/e/../../../.ssh"), ("./d/e", "/"), ("./x/authorized_keys", b"evil")],
        [(".", "."), ("./.ssh/authorized_keys", b"evil")],
        [(".", ".ssh"), ("./authorized_keys", b"evil")],
        [(".", None), ("./../.ssh/authorized_keys", b"evil"), ("../.ssh/authorized_keys", b"evil")],
        [(".", None), ("./authorized_keys", "../.ssh/authorized_keys"), ("./authorized_keys", b"evil")],
        [(".", None), ("/.ssh/authorized_keys", b"evil")],
    ],
)
def test_nothing_beside_the_copy_is_written(home: Path, members: list[Member]) -> None:
    copied(Copy(str(home), "out"), *members)
    assert (home / ".ssh" / "authorized_keys").read_text() == "mine"
    for each in (home / "out").rglob("*"):
        assert each.resolve().is_relative_to((home / "out").resolve())


def test_the_link_of_an_earlier_copy_is_not_followed(home: Path) -> None:
    """The first copy of a job may have made it, and the second has a directory of its name."""
    (home / "out").symlink_to(".ssh")
    copied(Copy(str(home), "out"), (".", None), ("./authorized_keys", b"evil"))
    assert (home / ".ssh" / "authorized_keys").read_text() == "mine"


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(home: Path) -> None:
    (home / "out").mkdir()
    (home / "out" / "f").symlink_to(home / ".ssh" / "authorized_keys")
    copied(Copy(str(home), "out"), (".", None), ("./f", b"theirs"))
    assert (home / ".ssh" / "authorized_keys").read_text() == "mine"
    assert (home / "out" / "f").read_text() == "theirs"
    assert not (home / "out" / "f").is_symlink()


def test_what_is_left_out_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not copied(Copy(str(home), "out"), (".", None), ("./d", "../.ssh"), ("./f", b"x"))
    assert "d: left out: a link that leads out of the copy" in capsys.readouterr().err
    assert (home / "out" / "f").read_bytes() == b"x"


def test_what_the_host_could_not_read_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tarfile.TarInfo("./shut")
    told.type, told.pax_headers = tarfile.FIFOTYPE, {LEFT_OUT: "Permission denied"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(told)
    stream = StreamedBody(io.BytesIO(out.getvalue()), {"content-length": str(len(out.getvalue()))})
    assert not module._extract(stream, Copy(str(home), "out"))
    assert "shut: left out: cannot be read: Permission denied" in capsys.readouterr().err


def test_a_copy_has_the_files_the_modes_and_the_links_within(home: Path) -> None:
    assert copied(
        Copy(str(home), "out"),
        (".", None),
        ("./d", None),
        ("./d/f", b"x"),
        ("./l", "d/f"),
        ("./d/up", "../l"),
    )
    assert (home / "out" / "d" / "up").read_bytes() == b"x"
    assert stat.S_IMODE((home / "out" / "d" / "f").stat().st_mode) & 0o777 == 0o644
    copied(Copy(str(home / "out"), ""), (".", None), ("./d/f", b"longer"))
    assert (home / "out" / "d" / "f").read_bytes() == b"longer"


def test_a_copy_needs_no_filter_of_tarfile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2, which is Debian's own, has none."""
    for name in ("data_filter", "tar_filter", "fully_trusted_filter"):
        monkeypatch.delattr(tarfile, name, raising=False)
    copied(Copy(str(home), "out"), (".", None), ("./f", b"x"), ("./l", "f"))
    assert (home / "out" / "l").read_bytes() == b"x"


def test_the_place_of_a_path_that_ends_in_dots_is_the_destination(home: Path) -> None:
    for path in ("", ".", "out/..", ".."):
        assert module._open_place(path, str(home)).place == str(home)
    with pytest.raises(UsageError, match="there is no directory"):
        module._open_place("x", str(home / "absent" / "x"))


def test_no_file_takes_the_name_of_a_directory_that_is_not_there(home: Path) -> None:
    for member in ((".", b"x"), (".", ".ssh")):
        with pytest.raises(UsageError, match="/absent/: there is no such directory; make it"):
            copied(module._open_place("x", f"{home}/absent/"), member)
        assert [each.name for each in home.iterdir()] == [".ssh"]


@pytest.mark.parametrize("name", ["results", "results/"])
def test_a_directory_is_made_under_the_name_that_it_is_given(home: Path, name: str) -> None:
    assert copied(module._open_place("out", f"{home}/{name}"), (".", None), ("./f", b"x"))
    assert (home / "results" / "f").read_bytes() == b"x"


def test_an_archive_for_standard_output_has_what_can_be_read_and_the_rest_is_told(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        told = tarfile.TarInfo("./shut")
        told.type, told.pax_headers = tarfile.FIFOTYPE, {LEFT_OUT: "Permission denied"}
        archive.addfile(told)
    before = packed((".", None), (f"./{'long' * 50}", b"x"), ("./l", "y"))
    whole = before[: before.rindex(b"y") // 512 * 512 + 512] + out.getvalue()
    stream = StreamedBody(io.BytesIO(whole), {"content-length": str(len(whole))})
    assert not module._write_archive(stream, "out")
    written = capsysbinary.readouterr()
    with tarfile.open(fileobj=io.BytesIO(written.out)) as archive:
        assert archive.getnames() == ["out", f"out/{'long' * 50}", "out/l"]
    assert b"out/shut: left out: cannot be read: Permission denied" in written.err
    cut = StreamedBody(io.BytesIO(before[:1800]), {"content-length": "1800"})
    with pytest.raises(Unavailable, match="the archive is not complete"):
        module._write_archive(cut, "out")
