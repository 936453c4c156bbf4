"""The tar of a context depends on paths, bytes and executable bits alone."""

import io
import os
import tarfile
from pathlib import Path

from images.context import entries_below, text_entry, write_tar


def packed(directory: Path) -> bytes:
    out = io.BytesIO()
    write_tar((text_entry("Dockerfile", "FROM x\n"), *entries_below(directory, "jobs")), out)
    return out.getvalue()


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.py").write_text("b")
    (tmp_path / "a.py").write_text("a")
    before = packed(tmp_path)
    os.utime(tmp_path / "a.py", (1, 1))
    (tmp_path / "a.py").chmod(0o666)
    assert packed(tmp_path) == before


def test_owners_and_modes_are_the_same_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("true")
    (tmp_path / "run.sh").chmod(0o700)
    (tmp_path / "a.py").write_text("a")
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path))) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert {name: member.mode for name, member in members.items()} == {
        "Dockerfile": 0o644,
        "jobs/a.py": 0o644,
        "jobs/run.sh": 0o755,
    }
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {(0, 0, "", "", 0)}


def test_links_stay_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    inside = tmp_path / "jobs"
    inside.mkdir()
    (inside / "link.py").symlink_to(tmp_path / "secret")
    assert entries_below(inside, "jobs") == ()


def test_the_engine_sees_a_tar_in_the_first_kilobyte(tmp_path: Path) -> None:
    (tmp_path / ("long" * 40 + ".py")).write_text("a")
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path)[:1024])) as tar:
        first = tar.next()
    assert first is not None
    assert first.name == "Dockerfile"


def test_hostile_names_arrive_as_they_are(hostile_path: Path) -> None:
    (hostile_path / "new\nline 'quoted'.py").write_text("a")
    with tarfile.open(fileobj=io.BytesIO(packed(hostile_path))) as tar:
        assert "jobs/new\nline 'quoted'.py" in tar.getnames()
