"""An image is built when nothing in the engine has its digest, and only then."""

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from images import wheels
from images.context import entries_below
from images.errors import BuildFailed
from images.lock_files import LockFile
from images.log import BuildLog
from images.recipe import Base
from images.records import recorded
from images.settings import LOCAL_BASE, Accelerator, ImageSettings, default_dockerfiles
from images.store import ImageStore
from tests.fakes.engine.image_engine import FakeEngine

ROOT = Path(__file__).parents[3]
BASE = Base("sha256:1", "base:1", "3.11", "x86_64", (2, 36))


@pytest.fixture
def settings(tmp_path: Path) -> ImageSettings:
    """Settings with every wheel already there: one file per lock."""
    found = ImageSettings(cache_dir=tmp_path / "cache", dockerfiles=tmp_path)
    for accelerator in ("cpu", "cuda", "rocm"):
        shutil.copy(default_dockerfiles() / f"Dockerfile.{accelerator}", tmp_path)
        lock = (ROOT / "images" / "locks" / f"{accelerator}.txt").read_bytes()
        place = wheels.wheel_directory(LockFile(accelerator, lock), BASE, found)
        place.mkdir(parents=True)
        (place / "torch-2.whl").write_bytes(b"wheel")
    return found


@pytest.fixture
def fake() -> FakeEngine:
    made = FakeEngine()
    made.add(LOCAL_BASE)
    return made


def test_the_first_wish_builds_the_environment_and_then_the_job_image(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    image = ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    environment, job = fake.builds
    assert environment.files == {"Dockerfile", "images/locks/cpu.txt", "wheelhouse/torch-2.whl"}
    assert job.files == {
        "Dockerfile",
        *(entry.path for entry in entries_below(ROOT / "jobs", "jobs")),
        *(
            f"gpu_job_runner/{name}"
            for name in (
                "__init__.py",
                "attach.py",
                "profiled.py",
                "tracking.py",
                *(f"integrations/{each}.py" for each in ("__init__", "huggingface", "lightning")),
            )
        ),
    }
    assert job.request.arguments == {"ENVIRONMENT": environment.request.tag}
    found = fake.image("runner-cpu:current")
    assert found is not None
    assert found.id == image
    assert "building runner-cpu:h-" in (tmp_path / "log.txt").read_text()


def test_the_second_wish_builds_nothing(settings: ImageSettings, fake: FakeEngine, tmp_path: Path) -> None:
    first = ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    assert ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt") == first
    assert len(fake.builds) == 2


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_the_image_carries_its_whole_digest(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path, accelerator: Accelerator
) -> None:
    store = ImageStore(settings, fake)
    image = fake.image(store.ensure(accelerator, tmp_path / "log.txt"))
    assert image is not None
    assert image.labels["runner.digest"] == store.digest(accelerator)
    assert image.labels["runner.accelerator"] == accelerator
    assert image.labels["runner.created"].endswith("+00:00")


def test_an_image_with_the_tag_and_another_digest_is_not_believed(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    address = ImageStore(settings, fake).digest("cpu")
    forged = fake.add(f"runner-cpu:h-{address[:16]}", {"runner.digest": address[:16] + "0" * 48})
    assert ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt") != forged.id


def test_a_change_of_the_last_stage_keeps_the_environment(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    dockerfile = tmp_path / "Dockerfile.cpu"
    dockerfile.write_text(dockerfile.read_text() + "LABEL site=here\n")
    ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    assert [built.request.labels["runner.kind"] for built in fake.builds] == ["environment", "job", "job"]


def test_another_base_makes_another_environment(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    fake.add(LOCAL_BASE)
    ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    assert len(fake.builds) == 4


def test_a_failed_build_is_explained_by_the_end_of_its_log(settings: ImageSettings, tmp_path: Path) -> None:
    failing = FakeEngine(failing=tuple(f"line {number}" for number in range(100)))
    failing.add(LOCAL_BASE)
    with pytest.raises(BuildFailed) as caught:
        ImageStore(settings, failing).ensure("cpu", tmp_path / "log.txt")
    assert str(caught.value).splitlines()[-2:] == [
        "line 99",
        "executor failed running [/bin/sh -c pip]: exit code: 1",
    ]
    assert len(str(caught.value).splitlines()) == 20
    assert "line 0\n" in (tmp_path / "log.txt").read_text()


def test_two_wishes_at_once_cause_one_build(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    answers: list[str] = []

    def wish(number: int) -> None:
        answers.append(ImageStore(settings, fake).ensure("cpu", tmp_path / f"log-{number}.txt"))

    threads = [threading.Thread(target=wish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1
    assert len(fake.builds) == 2


def test_an_accelerator_that_does_not_exist_is_named(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    with pytest.raises(BuildFailed, match="accelerator 'tpu': no image for it; take one of cpu, cuda, rocm"):
        ImageStore(settings, fake).ensure("tpu", tmp_path / "log.txt")


def test_a_chosen_builder_is_used(settings: ImageSettings, fake: FakeEngine, tmp_path: Path) -> None:
    chosen = ImageSettings(cache_dir=settings.cache_dir, dockerfiles=tmp_path, builder="classic")
    ImageStore(chosen, fake).ensure("cpu", tmp_path / "log.txt")
    assert {built.kind for built in fake.builds} == {"classic"}


def test_nobody_else_reads_the_log_of_a_build(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with BuildLog(tmp_path / "build.log") as log:
            log.line("RUN echo mine")
    finally:
        os.umask(before)
    assert (tmp_path / "build.log").stat().st_mode & 0o777 == 0o600


def test_a_log_can_be_followed_while_it_is_written(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    heard: list[str] = []
    ImageStore(settings, fake, heard.append).ensure("cpu", tmp_path / "log.txt")
    assert (tmp_path / "log.txt").read_text().splitlines() == heard


def test_a_disk_that_cannot_be_written_is_a_failed_build_with_a_reason(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildFailed, match=r"file: (File exists|Not a directory)"):
        ImageStore(settings, fake).ensure("cpu", tmp_path / "file" / "log.txt")


def test_a_tag_is_resolved_to_the_image_that_it_names_now(settings: ImageSettings, fake: FakeEngine) -> None:
    first, store = fake.add("site/ours:1"), ImageStore(settings, fake)
    assert store.resolve("site/ours:1") == first.id == store.resolve(first.id)
    assert fake.add("site/ours:1").id == store.resolve("site/ours:1") != first.id


def test_an_image_that_is_not_there_is_named_and_not_pulled(
    settings: ImageSettings, fake: FakeEngine
) -> None:
    fake.registry.add("site/ours:1")
    with pytest.raises(BuildFailed, match=r"^image site/ours:1: is not in the engine$"):
        ImageStore(settings, fake).resolve("site/ours:1")
    assert fake.pulled == []


def test_what_is_built_or_found_is_recorded_as_ours(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    image = ImageStore(settings, fake).ensure("cpu", tmp_path / "log.txt")
    environment = fake.image(fake.builds[0].request.tag)
    assert environment is not None
    elsewhere = replace(settings, cache_dir=tmp_path / "elsewhere")
    ImageStore(elsewhere, fake).ensure("cpu", tmp_path / "log.txt")
    assert recorded(settings.cache_dir) == recorded(elsewhere.cache_dir) == {image, environment.id}
    assert len(fake.builds) == 2


def test_the_chosen_lock_is_installed_and_said_by_a_label(
    settings: ImageSettings, fake: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "cuda-12.6.txt").write_text("torch==2.13.0+cu126\nnvidia-cuda-runtime-cu12==12.6.77\n")
    known = replace(settings, lock_dir=tmp_path, locks={"cuda": "cuda-12.6"})
    lock = ImageStore(known, fake).lock("cuda")
    place = wheels.wheel_directory(lock, BASE, known)
    place.mkdir(parents=True)
    (place / "torch-2.whl").write_bytes(b"wheel")
    image = fake.image(ImageStore(known, fake).ensure("cuda", tmp_path / "log.txt"))
    assert image is not None
    assert image.labels["runner.cuda"] == "12.6"
    environment, job = fake.builds
    assert "images/locks/cuda-12.6.txt" in environment.files
    assert environment.request.arguments["LOCK"] == "images/locks/cuda-12.6.txt"
    assert job.request.labels["runner.cuda"] == "12.6"
    newest = ImageStore(settings, fake)
    assert newest.digest("cuda") != ImageStore(known, fake).digest("cuda")
    shipped = fake.image(newest.ensure("cuda", tmp_path / "log.txt"))
    assert shipped is not None
    assert shipped.labels["runner.cuda"] == "13.0"
