"""What can go is what no new job gets and no container uses."""

from dataclasses import replace
from pathlib import Path

from images.file_lock import locked
from images.prune import list_images, prune
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


def stocked() -> FakeEngine:
    fake = FakeEngine()
    fake.add("somebody-elses:1")
    add(fake, "runner-cpu-environment:h-1", "1")
    add(fake, "runner-cpu-environment:h-2", "2")
    add(fake, "runner-cpu:h-3", "3", below="runner-cpu-environment:h-1")
    current = add(fake, "runner-cpu:h-4", "4", below="runner-cpu-environment:h-2", created="2027")
    fake.tag(current, "runner-cpu:current")
    return fake


def test_the_newest_image_is_listed_first_and_others_images_never() -> None:
    rows = list_images(stocked())
    assert [(row.digest, row.current) for row in rows] == [
        ("4", True),
        ("1", False),
        ("2", False),
        ("3", False),
    ]


def test_the_current_image_and_its_environment_stay(tmp_path: Path) -> None:
    fake = stocked()
    assert {row.digest for row in prune(fake, tmp_path)} == {"1", "3"}
    assert {row.digest for row in list_images(fake)} == {"2", "4"}
    assert fake.image("somebody-elses:1") is not None


def test_an_image_that_a_container_uses_stays(tmp_path: Path) -> None:
    fake = stocked()
    used = fake.image("runner-cpu:h-3")
    assert used is not None
    fake = replace(fake, in_use=frozenset({used.id}))
    assert {row.digest for row in prune(fake, tmp_path)} == {"1"}


def test_what_a_build_is_about_to_use_stays(tmp_path: Path) -> None:
    with locked(tmp_path, "1", lambda: None):
        assert {row.digest for row in prune(stocked(), tmp_path)} == {"3"}
