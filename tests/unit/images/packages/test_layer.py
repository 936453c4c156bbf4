"""A layer depends on the files of the packages alone, and makes them a virtual environment."""

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from images.errors import BuildFailed
from images.packages.layer import PackageLayer, variables
from images.packages.values import PythonFacts

FACTS = PythonFacts(
    "3.11",
    "x86_64",
    (2, 36),
    "/usr/bin/python3.11",
    ("/opt/venv/lib/site-packages",),
    (),
    scripts=("/opt/venv/bin/torchrun", "/opt/venv/bin/tool", "/opt/venv/bin/python3"),
)


def files(root: Path, order: int = 1) -> Path:
    """Make a package with a script; ``order`` is that in which its files are made."""
    site = root / "lib" / "python3.11" / "site-packages"
    (root / "bin").mkdir(parents=True)
    site.mkdir(parents=True)
    for name in ("a.py", "b.py")[::order]:
        (site / name).write_text(name)
    (root / "bin" / "tool").write_text("#!/opt/packages/bin/python\n")
    (root / "bin" / "tool").chmod(0o755)
    return root


def layer(root: Path, *, isolated: bool = False) -> tuple[str, bytes]:
    made = PackageLayer(root, FACTS, isolated=isolated)
    body = b"".join(made.parts())
    assert made.size == len(body)
    return hashlib.sha256(body).hexdigest(), body


def members(body: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        return {member.name: member for member in tar}


def test_the_same_files_make_the_same_bytes_whenever_and_by_whom_they_were_made(tmp_path: Path) -> None:
    first, second = files(tmp_path / "1"), files(tmp_path / "2", order=-1)
    os.utime(second / "bin" / "tool", (1, 1))
    (second / "lib").chmod(0o700)
    assert layer(first) == layer(second)
    assert layer(first)[0] == hashlib.sha256(layer(first)[1]).hexdigest()


def test_everything_in_a_layer_belongs_to_root_and_has_one_time(tmp_path: Path) -> None:
    found = members(layer(files(tmp_path / "1"))[1])
    assert {(each.uid, each.gid, each.mtime) for each in found.values()} == {(0, 0, 315532800)}
    assert found["opt/packages/bin/tool"].mode == 0o755
    assert found["opt/packages/lib/python3.11/site-packages/a.py"].mode == 0o644


def test_a_layer_is_a_virtual_environment_that_also_sees_the_packages_of_the_image(tmp_path: Path) -> None:
    body = layer(files(tmp_path / "1"))[1]
    found = members(body)
    assert found["opt/packages/bin/python"].linkname == "/usr/bin/python3.11"
    assert found["opt/packages/bin/python3"].linkname == "python"
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        config = tar.extractfile("opt/packages/pyvenv.cfg")
        seen = tar.extractfile("opt/packages/lib/python3.11/site-packages/runner-image.pth")
        assert config is not None
        assert seen is not None
        assert b"home = /usr/bin\n" in config.read()
        assert seen.read() == b"import site; site.addsitedir('/opt/venv/lib/site-packages')\n"


def test_programs_of_the_image_run_with_the_packages_unless_those_bring_them(tmp_path: Path) -> None:
    body = layer(files(tmp_path / "1"))[1]
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        torchrun, tool = (tar.extractfile(f"opt/packages/bin/{name}") for name in ("torchrun", "tool"))
        assert torchrun is not None
        assert tool is not None
        assert torchrun.read().startswith(b"#!/opt/packages/bin/python\nwith open('/opt/venv/bin/torchrun', ")
        assert tool.read() == b"#!/opt/packages/bin/python\n"
    found = members(body)
    assert found["opt/packages/bin/torchrun"].mode == 0o755
    assert found["opt/packages/bin/python3"].linkname == "python"
    assert "opt/packages/bin/torchrun" not in members(layer(tmp_path / "1", isolated=True)[1])


def test_packages_of_another_torch_do_not_see_those_of_the_image(tmp_path: Path) -> None:
    names = members(layer(files(tmp_path / "1"), isolated=True)[1])
    assert not any(name.endswith("runner-image.pth") for name in names)


def test_packages_without_scripts_make_a_whole_environment_too(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    names = members(layer(tmp_path)[1])
    assert names["opt/packages/bin"].isdir()
    assert names["opt/packages/lib/python3.11/site-packages"].isdir()


@pytest.mark.parametrize("odd", ["link", "pipe"])
def test_a_package_with_something_other_than_files_is_refused(tmp_path: Path, odd: str) -> None:
    root = files(tmp_path / "1")
    if odd == "link":
        (root / "lib" / "evil").symlink_to("/etc/shadow")
    else:
        os.mkfifo(root / "lib" / "evil")
    with pytest.raises(BuildFailed, match="lib/evil: a package contains"):
        layer(root)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    root = files(tmp_path / "1")
    made = PackageLayer(root, FACTS, isolated=False)
    (root / "bin" / "tool").write_text("#!/opt/packages/bin/python\nmore\n")
    with pytest.raises(BuildFailed, match="tool: has changed while it was read"):
        b"".join(made.parts())


def test_an_image_finds_the_packages_before_what_the_one_below_has() -> None:
    found = variables(FACTS, ("PATH=/opt/venv/bin:/usr/bin", "LANG=C.UTF-8"))
    assert found == {"PATH": "/opt/packages/bin:/opt/venv/bin:/usr/bin", "VIRTUAL_ENV": "/opt/packages"}


def test_an_image_without_a_path_gets_the_usual_one() -> None:
    assert variables(FACTS, ())["PATH"] == f"/opt/packages/bin:{os.defpath}"
