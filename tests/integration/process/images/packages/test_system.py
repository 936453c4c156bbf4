"""Debian packages become a lock and a layer; the containers are played by a script."""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.lock import parse_lock
from images.packages.resolve import IndexUnavailable, Unresolvable
from images.packages.store import PackageSettings, PackageStore
from images.packages.values import Indexes, Limits, Requirements
from images.ports import Step, StepEnd
from tests.fakes.engine.image_engine import FakeEngine
from tests.fakes.engine.wheel_folder import make_wheel
from tests.integration.process.images.packages.test_packages import FACTS


class DebianEngine(FakeEngine):
    """An engine whose containers have an archive of packages."""

    archive: dict[str, bytes]
    failing_install = False
    answers = True
    removed: tuple[str, ...] = ()

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        if "/out" not in step.writable:
            return super().step(step, token)
        self.steps.append(step)
        out = step.writable["/out"]
        return self._fetch(step, out) if step.network else self._install(step, out)

    def _fetch(self, step: Step, out: Path) -> StepEnd:
        if not self.answers:
            return StepEnd(75, "E: Failed to fetch http://archive.example/debian\n")
        for name in step.argv[5:]:
            found = [each for each in self.archive if each.split("_")[0] == name.partition("=")[0]]
            if not found or name.partition("=")[2].replace(":", "%3a") not in found[0]:
                return StepEnd(1, f"Reading...\nE: Unable to locate package {name}\n")
        for name, body in self.archive.items():
            (out / name).write_bytes(body)
        return StepEnd(0, "Fetched\n")

    def _install(self, step: Step, out: Path) -> StepEnd:
        if self.failing_install:
            return StepEnd(100, "dpkg: error\nE: Sub-process dpkg returned an error\n")
        with tarfile.open(out / "layer.tar", "w") as tar:
            for path in sorted(step.files["/run/debs"].iterdir()):
                member = tarfile.TarInfo(f"usr/lib/{path.name}")
                member.size = path.stat().st_size
                tar.addfile(member, io.BytesIO(path.read_bytes()))
        (out / "removed.json").write_text(json.dumps(self.removed))
        return StepEnd(0, "Setting up\n")


class Site:
    """A package store on such an engine, with a folder of wheels."""

    def __init__(self, root: Path) -> None:
        self.engine = DebianEngine(facts=dict(FACTS))
        self.engine.archive = {"libx1_1%3a2.0_amd64.deb": b"one", "libneeded_3_all.deb": b"two"}
        self.image = self.engine.add("runner-cpu:h-1").id
        wheels = root / "wheels"
        make_wheel(wheels, "bar", "1.0")
        indexes = Indexes(find_links=(str(wheels),), offline=True)
        self.cache = root / "cache"
        settings = PackageSettings(self.cache, indexes, limits=Limits(60))
        self.store = PackageStore(settings, lambda: self.engine)
        self.log = BuildLog(root / "log.txt")

    def lock(self, *system: str, lines: tuple[str, ...] = ()) -> str:
        return self.store.resolve(Requirements(lines, system=system), self.image, None, self.log).text

    def ensure(self, lock: str) -> str:
        return self.store.ensure(lock, self.image, "cpu", self.log)

    def networks(self) -> list[bool]:
        return [step.network for step in self.engine.steps if "/out" in step.writable]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with made.log:
        yield made


def test_debian_packages_become_a_lock_and_a_layer_of_their_own(site: Site) -> None:
    text = site.lock("libx1")
    assert [(each.name, each.version) for each in parse_lock(text).system] == [
        ("libneeded", "3"),
        ("libx1", "1:2.0"),
    ]
    assert parse_lock(text).text == text
    made = site.ensure(text)
    image = site.engine.image(made)
    assert image is not None
    assert image.labels["runner.kind"] == "system"
    assert site.networks() == [True, False]  # what installs them has no network
    [body] = site.engine.loaded.values()
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        assert tar.getnames() == ["usr/lib/libneeded_3_all.deb", "usr/lib/libx1_1%3a2.0_amd64.deb"]
    environment = site.engine.inspect(made)["Config"]["Env"]
    assert environment == site.engine.inspect(site.image)["Config"]["Env"]


def test_what_the_installation_has_removed_is_removed_from_the_image(site: Site) -> None:
    site.engine.removed = ("/etc/old.conf",)
    site.ensure(site.lock("libx1"))
    assert site.engine.additions[-1].removed == ("/etc/old.conf",)


def test_python_packages_are_a_layer_above_them(site: Site) -> None:
    made = site.ensure(site.lock("libx1", lines=("bar",)))
    assert len(site.engine.layers[made]) == 3


def test_packages_that_are_kept_are_not_asked_for_again(site: Site) -> None:
    text = site.lock("libx1")
    site.engine.archive.clear()
    site.engine.remove(next(iter(site.engine.loaded)))
    assert site.engine.image(site.ensure(text)) is not None
    assert site.networks() == [True, False, False]


def forget(site: Site) -> None:
    site.engine.remove(next(iter(site.engine.loaded)))
    for path in (site.cache / "packages" / "debs").iterdir():
        path.unlink()


def test_packages_that_are_gone_are_downloaded_in_their_versions(site: Site) -> None:
    text = site.lock("libx1")
    forget(site)
    site.ensure(text)
    [again] = [step for step in site.engine.steps if step.network][1:]
    assert again.argv[5:] == ("libneeded=3", "libx1=1:2.0")


def change(site: Site) -> None:
    site.engine.archive["libneeded_3_all.deb"] = b"another"


def vanish(site: Site) -> None:
    del site.engine.archive["libneeded_3_all.deb"]


@pytest.mark.parametrize(
    ("what", "fact"),
    [(change, "libneeded_3_all.deb: the archive has another"), (vanish, "libneeded=3: Unable to locate")],
)
def test_packages_that_the_archive_does_not_have_any_more_are_named(
    site: Site, what: Callable[[Site], None], fact: str
) -> None:
    text = site.lock("libx1")
    forget(site)
    what(site)
    with pytest.raises(BuildFailed, match=fact):
        site.ensure(text)


def test_a_package_that_does_not_exist_is_told_with_its_name(site: Site) -> None:
    with pytest.raises(Unresolvable, match=r"^nosuch: Unable to locate package nosuch$") as raised:
        site.lock("libx1", "nosuch")
    assert "Reading" in raised.value.details
    site.engine.answers = False
    with pytest.raises(IndexUnavailable, match=r"the Debian archive: Failed to fetch"):
        site.lock("libx1")


def test_an_installation_that_fails_leaves_no_image(site: Site) -> None:
    site.engine.failing_install = True
    with pytest.raises(BuildFailed, match="the installation fails: Sub-process dpkg"):
        site.lock("libx1")
    assert site.engine.loaded == {}
    kept = {path.name for path in (site.cache / "packages" / "debs").iterdir()}
    assert all(len(name) == 64 for name in kept)


def test_the_same_packages_are_built_once(site: Site) -> None:
    made = site.ensure(site.lock("libx1"))
    assert site.ensure(site.lock("libx1")) == made
    assert site.networks() == [True, False, True]
