"""Packages of a job that is a plain process: a virtual environment on this host, made by the real ``uv``."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.environment import EnvironmentStore, host_facts
from images.packages.resolve import Resolver
from images.packages.store import PackageSettings
from images.packages.values import Indexes, Requirements
from tests.fakes.engine.wheel_folder import make_wheel


@pytest.fixture
def settings(tmp_path: Path) -> PackageSettings:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "bar", "1.0", requires=("baz>=2",), scripts={"bar": "bar:main"})
    make_wheel(wheels, "baz", "2.0")
    return PackageSettings(tmp_path / "cache", Indexes(find_links=(str(wheels),), offline=True))


@pytest.fixture
def store(settings: PackageSettings) -> EnvironmentStore:
    facts = host_facts()
    return EnvironmentStore(settings, lambda: facts)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[BuildLog]:
    with BuildLog(tmp_path / "log.txt") as made:
        yield made


def lock(settings: PackageSettings, store: EnvironmentStore, *lines: str) -> str:
    resolver = Resolver(settings.cache_dir / "packages", settings.indexes, settings.limits)
    return resolver.resolve(Requirements(lines), store.facts(), None, CancellationToken()).text


def test_programs_of_the_environment_find_its_packages_and_those_of_the_host(
    settings: PackageSettings, store: EnvironmentStore, log: BuildLog
) -> None:
    text = lock(settings, store, "bar")
    store.ensure(text, log)
    place = store.place(text)
    assert place is not None
    code = "import bar, baz, pydantic, sys; print(bar.VERSION, baz.__file__, sys.prefix)"
    found = subprocess.run(
        [place / "bin" / "python", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert found.split() == ["1.0", str(Path(*place.parts, site(place), "baz", "__init__.py")), str(place)]
    script = subprocess.run([place / "bin" / "bar"], capture_output=True, text=True, check=True)
    assert script.stdout == "1.0\n"


def test_programs_of_the_host_find_the_packages_of_the_environment(
    settings: PackageSettings, store: EnvironmentStore, log: BuildLog
) -> None:
    text = lock(settings, store, "bar")
    store.ensure(text, log)
    place = store.place(text)
    assert place is not None
    code = "import bar, sys; print('bar', bar.VERSION, sys.prefix)"
    workers = ["--standalone", "--nproc-per-node=1", "-m", "timeit", "-n1", "-r1", code]
    for start in ([], [str(place / "bin" / "python")]):
        argv = [*start, str(place / "bin" / "torchrun"), *workers]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert f"bar 1.0 {place}\n" in said
    assert not (place / "bin" / "pip").exists()
    assert not (place / "bin" / "runner").exists()


def site(place: Path) -> str:
    [found] = place.glob("lib/python*/site-packages")
    return str(found.relative_to(place))


def test_an_environment_is_made_once_and_only_this_process_may_change_it(
    settings: PackageSettings, store: EnvironmentStore, log: BuildLog
) -> None:
    text = lock(settings, store, "bar")
    store.ensure(text, log)
    place = store.place(text)
    assert place is not None
    before = place.stat().st_ino
    store.ensure(text, log)
    assert place.stat().st_ino == before
    files = [path for path in place.rglob("*") if not path.is_symlink()]
    assert all(not path.stat().st_mode & 0o022 for path in files)
    assert all(path.stat().st_nlink == 1 for path in files if path.is_file())  # none is a wheel's own
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_packages_that_the_host_has_need_no_environment(
    settings: PackageSettings, store: EnvironmentStore, log: BuildLog
) -> None:
    text = lock(settings, store, "pydantic")
    store.ensure(text, log)
    assert store.place(text) is None


def test_a_wheel_that_has_vanished_leaves_nothing_behind(
    settings: PackageSettings, store: EnvironmentStore, log: BuildLog, tmp_path: Path
) -> None:
    text = lock(settings, store, "bar")
    for wheel in (tmp_path / "wheels").iterdir():
        wheel.unlink()
    with pytest.raises(BuildFailed, match="Failed to download"):
        store.ensure(text, log)
    environments = settings.cache_dir / "packages" / "environments"
    assert not environments.exists() or not [*environments.iterdir()]


def test_a_python_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(BuildFailed, match="ends with 3: no"):
        host_facts()


@pytest.mark.parametrize(
    ("file", "fact"),
    [
        (f"odd/{'a/' * 900}x.py", "odd: has directories deeper than 64 levels"),
        (
            "odd-1.0.data/data/pyvenv.cfg/x",
            "a package has what an environment has: pyvenv.cfg: Is a directory",
        ),
        ("odd-1.0.data/data/lib/python2.0/x", "what the packages hold does not fit together: "),
    ],
)
def test_a_wheel_with_a_tree_of_any_shape_is_a_failure_and_leaves_nothing(
    file: str, fact: str, settings: PackageSettings, store: EnvironmentStore, log: BuildLog
) -> None:
    make_wheel(Path(settings.indexes.find_links[0]), "odd", "1.0", files={file: "x"})
    text = lock(settings, store, "odd")
    place = store.place(text)
    assert place is not None
    with pytest.raises(BuildFailed, match=f"^{fact}"):
        store.ensure(text, log)
    assert not place.parent.exists() or list(place.parent.iterdir()) == []
