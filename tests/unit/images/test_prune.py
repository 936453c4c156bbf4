"""Images that can go: no new job gets them and no container uses them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from images.digest import LABEL
from images.file_lock import locked
from images.ports import Image
from images.prune import evict, find_unused, list_images, prune
from images.records import last_used_s, record, recorded
from tests.fakes.engine.image_engine import FakeEngine


def add(fake: FakeEngine, tag: str, digest: str, below: str = "", created: str = "2026") -> str:
    labels = {
        "runner.digest": digest,
        "runner.kind": "environment" if "environment" in tag else "job",
        "runner.accelerator": "cpu",
        "runner.below": below,
        "runner.created": created,
    }
    return fake.add(tag, labels).id


@pytest.fixture
def fake(tmp_path: Path) -> FakeEngine:
    """An engine with images of ours, all recorded."""
    fake = FakeEngine()
    fake.add("somebody-elses:1")
    add(fake, "runner-cpu-environment:h-1", "1")
    add(fake, "runner-cpu-environment:h-2", "2")
    add(fake, "runner-cpu:h-3", "3", below="runner-cpu-environment:h-1")
    current = add(fake, "runner-cpu:h-4", "4", below="runner-cpu-environment:h-2", created="2027")
    fake.tag(current, "runner-cpu:current")
    for image in fake.images(LABEL):
        record(tmp_path, image.id)
    return fake


def test_the_newest_image_is_listed_first_and_others_images_never(fake: FakeEngine, tmp_path: Path) -> None:
    rows = list_images(fake, tmp_path)
    assert [(row.digest, row.current) for row in rows] == [
        ("4", True),
        ("1", False),
        ("2", False),
        ("3", False),
    ]


def test_the_current_image_and_its_environment_stay(fake: FakeEngine, tmp_path: Path) -> None:
    assert {row.digest for row in prune(fake, tmp_path)} == {"1", "3"}
    assert {row.digest for row in list_images(fake, tmp_path)} == {"2", "4"}
    assert fake.image("somebody-elses:1") is not None


def test_an_image_that_a_container_uses_stays(fake: FakeEngine, tmp_path: Path) -> None:
    used = fake.image("runner-cpu:h-3")
    assert used is not None
    fake = replace(fake, in_use=frozenset({used.id}))
    assert {row.digest for row in prune(fake, tmp_path)} == {"1"}


def test_what_a_build_is_about_to_use_stays(fake: FakeEngine, tmp_path: Path) -> None:
    with locked(tmp_path, "1", lambda: None):
        assert {row.digest for row in prune(fake, tmp_path)} == {"3"}


def test_an_image_that_was_built_from_one_of_ours_is_neither_listed_nor_removed(
    fake: FakeEngine, tmp_path: Path
) -> None:
    """It inherits our labels; a tag that looks like ours changes nothing."""
    theirs = [add(fake, tag, "3") for tag in ("lab-image:2", "lab-image:current", "runner-cpu:h-9")]
    assert not {row.id for row in list_images(fake, tmp_path)} & set(theirs)
    assert {row.digest for row in prune(fake, tmp_path)} == {"1", "3"}
    assert all(fake.image(image) for image in theirs)


def test_an_image_of_ours_that_somebody_has_named_stays(fake: FakeEngine, tmp_path: Path) -> None:
    fake.tag("runner-cpu:h-3", "lab/ours:1")
    assert {row.digest for row in prune(fake, tmp_path, allowed=["runner-cpu-environment:h-1"])} == set()
    assert {row.digest for row in prune(fake, tmp_path, allowed=["not-there:1"])} == {"1"}


def test_a_dry_run_removes_nothing_and_a_removed_image_is_forgotten(fake: FakeEngine, tmp_path: Path) -> None:
    before = recorded(tmp_path)
    found = find_unused(fake, tmp_path)
    assert (len(found), recorded(tmp_path)) == (2, before)
    assert prune(fake, tmp_path) == found
    assert recorded(tmp_path) == before - {row.id for row in found}


def packages(engine: FakeEngine, cache: Path, name: str, used_s: int, below: Image) -> Image:
    """Put an image with packages there, of 100 bytes of its own, that was last used then."""
    labels = {"runner.digest": name, "runner.kind": "packages", "runner.below": below.id}
    made = replace(engine.add(f"runner-cpu-packages:h-{name}", labels), size_bytes=below.size_bytes + 100)
    engine.store[made.id] = replace(made, tags=())
    record(cache, made.id)
    path = cache / "made" / made.id.replace(":", "-")
    os.utime(path, (used_s, used_s))
    return made


def kept(engine: FakeEngine) -> set[str]:
    return {tag.removeprefix("runner-cpu-packages:h-") for tag in engine.tagged if "packages" in tag}


def test_packages_that_were_not_used_for_longest_go_first(tmp_path: Path) -> None:
    engine = FakeEngine()
    below = engine.add("runner-cpu:h-1", {"runner.digest": "1", "runner.kind": "job"})
    record(tmp_path, below.id)
    for name, used_s in (("new", 300), ("old", 100), ("middle", 200)):
        packages(engine, tmp_path, name, used_s, below)
    assert [row.digest for row in evict(engine, tmp_path, 200, ())] == ["old"]
    assert kept(engine) == {"new", "middle"}
    assert evict(engine, tmp_path, 200, ()) == ()
    assert len(evict(engine, tmp_path, 0, ())) == 2
    assert "runner-cpu:h-1" in engine.tagged


def test_packages_that_a_container_or_a_waiting_job_needs_stay(tmp_path: Path) -> None:
    engine = FakeEngine()
    below = engine.add("runner-cpu:h-1", {"runner.digest": "1", "runner.kind": "job"})
    record(tmp_path, below.id)
    made = {name: packages(engine, tmp_path, name, 100, below) for name in ("run", "wait", "idle", "named")}
    engine.in_use = frozenset({made["run"].id})
    engine.tag(made["named"].id, "lab:latest")
    evict(engine, tmp_path, 0, (made["wait"].id,))
    assert kept(engine) == {"run", "wait", "named"}


def test_an_image_is_used_when_it_is_recorded_again(tmp_path: Path) -> None:
    assert record(tmp_path, "sha256:1")
    path = tmp_path / "made" / "sha256-1"
    os.utime(path, (1, 1))
    assert last_used_s(tmp_path, "sha256:1") == 1
    assert not record(tmp_path, "sha256:1")
    assert last_used_s(tmp_path, "sha256:1") > 1
    assert last_used_s(tmp_path, "sha256:2") == 0
