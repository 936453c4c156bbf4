"""Waiting of jobs for images, and the end of a build that nobody needs."""

import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from images import wheels
from images.lock_files import LockFile
from images.pull_progress import PullProgress
from images.recipe import Base
from images.settings import LOCAL_BASE, ImageSettings, default_dockerfiles
from images.store import ImageStore
from runner.adapters.docker import images as image_store
from runner.adapters.docker.images import DockerImages
from runner.base.errors import Unavailable
from runner.core.ports.images import BuildFailed
from tests.fakes.engine.image_engine import FakeEngine
from tests.fakes.patience import patience

LOCKS = Path(wheels.__file__).with_name("locks")


@dataclass
class Site:
    """An engine whose builds go on until they are broken off, and jobs that wait for an image."""

    directory: Path
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(endless=True))
    queued: threading.Event = field(default_factory=threading.Event)
    said: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine.add(LOCAL_BASE)
        settings = ImageSettings(cache_dir=self.directory / "cache", dockerfiles=self.directory)
        shutil.copy(default_dockerfiles() / "Dockerfile.cpu", self.directory)
        base = Base("sha256:1", "base:1", "3.11", "x86_64", (2, 36))
        lock = LockFile("cpu", (LOCKS / "cpu.txt").read_bytes())
        wheels.wheel_directory(lock, base, settings).mkdir(parents=True)
        self.images = DockerImages(ImageStore(settings, self.engine, self._hear))

    def _hear(self, line: str) -> None:
        if line == "waiting for another build of the same image":
            self.queued.set()

    def begin(self, job_id: str) -> Callable[[], None]:
        """Let a job wait for its image, and return how to await what became of that."""

        def wish() -> None:
            try:
                self.said[job_id] = self.images.ensure("cpu", self.directory / f"{job_id}.log", job_id)
            except Unavailable as error:
                self.said[job_id] = str(error)

        thread = threading.Thread(target=wish)
        thread.start()
        return lambda: thread.join(patience())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_build_that_no_job_waits_for_is_broken_off(site: Site) -> None:
    ended = site.begin("1")
    assert site.engine.building.wait(patience())
    site.images.leave("1")
    ended()
    assert site.said == {
        "1": "the image build was cancelled: no job waits for the image any more; it is tried again"
    }
    assert (site.directory / "1.log").read_text().endswith("no job waits for the image any more\n")


def test_a_build_goes_on_for_the_last_job_that_waits_for_it(site: Site) -> None:
    ended = [site.begin("1")]
    assert site.engine.building.wait(patience())
    ended.append(site.begin("2"))
    assert site.queued.wait(patience())
    site.images.leave("1")
    assert not site.engine.broken_off.is_set()
    site.images.leave("2")
    for end in ended:
        end()
    assert site.engine.broken_off.is_set()
    assert set(site.said) == {"1", "2"}


def test_whoever_comes_after_a_build_was_broken_off_begins_anew(site: Site) -> None:
    ended = site.begin("1")
    assert site.engine.building.wait(patience())
    site.images.leave("1")
    ended()
    site.engine.endless = False
    assert site.images.ensure("cpu", site.directory / "2.log", "2").startswith("sha256:")


def test_a_daemon_that_leaves_does_not_wait_for_a_build(site: Site) -> None:
    ended = site.begin("1")
    assert site.engine.building.wait(patience())
    site.images.close()
    ended()
    assert "the daemon stops" in (site.directory / "1.log").read_text()


def test_leaving_without_having_waited_changes_nothing(site: Site) -> None:
    site.engine.endless = False
    site.images.leave("1")
    assert site.images.ensure("cpu", site.directory / "1.log", "1") == site.images.ensure(
        "cpu", site.directory / "1.log", "1"
    )


def test_the_errors_of_images_become_ours(site: Site) -> None:
    with pytest.raises(BuildFailed, match="image site/gone:1: is not in the engine"):
        site.images.resolve("site/gone:1")
    site.engine.endless, site.engine.failing = False, ("no such wheel",)
    with pytest.raises(BuildFailed, match="no such wheel"):
        site.images.ensure("cpu", site.directory / "1.log", "1")


def test_a_full_disk_is_no_fault_of_a_job_whose_image_is_built(site: Site) -> None:
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    site.engine.endless, site.engine.failing = False, (said,)
    with pytest.raises(Unavailable, match=rf"^{re.escape(said)}; it is tried again$"):
        site.images.ensure("cpu", site.directory / "1.log", "1")
    site.engine.failing = ()
    assert site.images.ensure("cpu", site.directory / "1.log", "1").startswith("sha256:")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("failed to register layer: write /usr/lib/libtorch.so: no space left on device", Unavailable),
        (
            "Get https://nvcr.io/v2/: dial tcp: lookup nvcr.io on 127.0.0.53:53: server misbehaving",
            Unavailable,
        ),
        ("Get https://nvcr.io/v2/: net/http: request canceled (Client.Timeout exceeded)", Unavailable),
        ("toomanyrequests: You have reached your pull rate limit", Unavailable),
        ("received unexpected HTTP status: 503 Service Unavailable", Unavailable),
        ("unexpected EOF", Unavailable),
        ("Connection aborted: Connection reset by peer", Unavailable),
        ("manifest for lab/torch:2 not found: manifest unknown: manifest unknown", BuildFailed),
        ("pull access denied for lab/torch, repository does not exist or may require login", BuildFailed),
        ("unauthorized: authentication required", BuildFailed),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", BuildFailed),
    ],
)
def test_a_registry_that_is_down_is_no_fault_of_a_job(
    site: Site, monkeypatch: pytest.MonkeyPatch, words: str, kind: type[Exception]
) -> None:
    def pull(reference: str, *_: object) -> None:
        PullProgress(reference).line({"error": words})

    monkeypatch.setattr(site.engine, "pull", pull)
    with pytest.raises(kind, match=re.escape(f"pull lab/torch@sha256:1: {words}")):
        site.images.fetch("lab/torch@sha256:1", site.directory / "1.log", "1")


def test_jobs_that_come_together_ask_the_engine_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(image_store, "monotonic", lambda: now[0])
    site.engine.endless = False

    def builds_for(job_id: str) -> int:
        image = site.images.ensure("cpu", site.directory / f"{job_id}.log", job_id)
        site.engine.store.pop(image, None)  # and gone again
        return len(site.engine.builds)

    first = builds_for("1")
    assert builds_for("2") == first
    second = builds_for("1")
    assert second > first, "who asks again has found it gone"
    assert builds_for("2") == second
    now[0] += image_store.CACHE_S + 0.1
    assert builds_for("3") > second, "what was there a while ago is asked for again"
