"""A lock for another CUDA is resolved from the index of its torch; here a made-up one, by the real uv."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from images.errors import BuildFailed
from images.lock_files import available, named
from images.make_lock import build_of, make_lock, requirements
from images.packages.values import Indexes
from images.settings import ImageSettings
from runner.cli.main import cli


def wheel(directory: Path, name: str, version: str, *requires: str) -> Path:
    """Write a wheel without modules."""
    directory.mkdir(parents=True, exist_ok=True)
    file = name.replace("-", "_")
    info = f"{file}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    path = directory / f"{file}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def index(directory: Path, *wheels: Path) -> str:
    """Write a simple index of some wheels, and return its address."""
    for path in wheels:
        name = path.name.partition("-")[0].replace("_", "-")
        place = directory / name / "index.html"
        place.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with place.open("a") as page:
            page.write(f'<a href="{path.as_uri()}#sha256={digest}">{path.name}</a>\n')
    return directory.as_uri()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Indexes, str]:
    """An index of common packages, and one of torch for CUDA 12.6, whose wheel needs its own runtime."""
    root = tmp_path_factory.mktemp("site")
    pins = [line.split("==") for line in requirements("cu126").splitlines()]
    others = [wheel(root / "wheels", *pin) for pin in pins if pin[0] != "torch"]
    [version] = [pin[1] for pin in pins if pin[0] == "torch"]
    torch = wheel(root / "torch", "torch", version, "numpy", "nvidia-cuda-runtime-cu12==12.6.77")
    runtime = wheel(root / "torch", "nvidia-cuda-runtime-cu12", "12.6.77")
    common = wheel(root / "wheels", "torch", version.partition("+")[0])  # the build that PyPI has
    return Indexes(index_url=index(root / "pypi", *others, common)), index(root / "cu126", torch, runtime)


def test_a_lock_has_the_torch_of_its_name_what_that_needs_and_hashes(
    site: tuple[Indexes, str], tmp_path: Path
) -> None:
    settings = ImageSettings(cache_dir=tmp_path, lock_dir=tmp_path, indexes={"cuda-12.6": site[1]})
    made = make_lock("cuda-12.6", settings, site[0])
    assert (made.version, made.build) == ((12, 6), "cu126")
    text = made.text.decode()
    pins = re.findall(r"^([a-z0-9-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    expected = {line.partition("==")[0] for line in requirements("cu126").splitlines()}
    assert {name for name, _ in pins} == expected | {"nvidia-cuda-runtime-cu12"}
    assert "# Made by: runner images lock cuda-12.6." in text
    (tmp_path / "cuda-12.6.txt").write_bytes(made.text)
    assert [lock.name for lock in available("cuda", settings)] == ["cuda", "cuda-12.6"]
    assert named("cuda", ImageSettings(lock_dir=tmp_path, locks={"cuda": "cuda-12.6"})) == made


def test_an_index_without_the_build_gives_no_lock(site: tuple[Indexes, str], tmp_path: Path) -> None:
    settings = ImageSettings(cache_dir=tmp_path, indexes={"cuda": site[1]})
    with pytest.raises(BuildFailed, match=r"lock cuda-12\.8: .*torch==2\.13\.0\+cu128"):
        make_lock("cuda-12.8", settings, site[0])


@pytest.mark.parametrize(("name", "build"), [("cuda-12.6", "cu126"), ("rocm-7.1", "rocm7.1")])
def test_a_name_says_which_build_it_is(name: str, build: str) -> None:
    assert build_of(name) == build
    assert f"torch==2.13.0+{build}\n" in requirements(build)


@pytest.mark.parametrize("name", ["cuda", "cpu-1.0", "../x", "cuda-12", "metal-1.0"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(BuildFailed, match=r"no name of a further lock; take one such as cuda-12\.6"):
        build_of(name)


def test_the_command_writes_it_where_the_daemon_looks(
    site: tuple[Indexes, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"torch_indexes: {{cuda-12.6: '{site[1]}'}}\npackages: {{index_url: '{site[0].index_url}'}}\n"
    )
    monkeypatch.setenv("RUNNER_SETTINGS", str(settings))
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path / "state"))
    done = CliRunner().invoke(cli, ["images", "lock", "cuda-12.6"])
    place = tmp_path / "state/images/lock-files/cuda-12.6.txt"
    assert (done.exit_code, done.stdout) == (0, f"{place}\n")
    printed = CliRunner().invoke(cli, ["images", "lock", "cuda-12.6", "--output", "-"])
    assert printed.stdout == place.read_text()
    nowhere = CliRunner().invoke(cli, ["images", "lock", "cuda-12.6", "--output", "/proc/no/lock"])
    assert nowhere.exit_code == 4
    assert nowhere.stderr.startswith("/proc/no")
    wrong = CliRunner().invoke(cli, ["images", "lock", "cuda"])
    assert (wrong.exit_code, "no name of a further lock" in wrong.stderr) == (4, True)
