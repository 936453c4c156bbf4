"""Requests that come twice, too early, with odd names, or with paths that break careless programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.daemon.service import Json, Service, service
from tests.fakes.engine.engine_proxy import EngineProxy
from tests.fakes.patience import patience

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def daemon(counter: str) -> Iterator[Service]:
    with service(executor="docker", allowed_images={"counter": counter}) as made:
        yield made.start()
        made.assert_whole()


def test_cancelling_while_the_image_is_prepared_is_at_once_and_nothing_starts_later(
    behind_proxy: Service, proxy: EngineProxy, trainer_image: str
) -> None:
    del trainer_image
    building = proxy.stop_after("/images/")
    job_id = behind_proxy.submit(behind_proxy.training("train", 4), end="cancelled")
    assert building.wait(patience())
    behind_proxy.runner("cancel", job_id)
    assert behind_proxy.ends(job_id)["attempts"] == []
    proxy.shut()  # the build fails now, which nobody waits for
    proxy.resume()
    behind_proxy.assert_whole()
    assert behind_proxy.job(job_id)["attempts"] == []


def test_of_two_jobs_with_one_name_the_name_means_the_newer(daemon: Service) -> None:
    older, newer = (daemon.submit(daemon.counting("twin", steps)) for steps in (3, 4))
    assert older != newer
    for job_id in (older, newer):
        assert daemon.ends(job_id)["outcome"] == "succeeded"
    assert daemon.job("twin")["id"] == newer
    assert daemon.runner("logs", "twin").splitlines()[-2:] == ["step 4", "end"]
    assert daemon.runner("logs", older).splitlines()[-2:] == ["step 3", "end"]


def test_paths_with_spaces_quotes_and_newlines_reach_the_job_whole(
    daemon: Service, hostile_path: Path
) -> None:
    directory = daemon.root / hostile_path.name
    directory.mkdir()
    source = directory / hostile_path.name
    source.mkdir()
    (source / "a.txt").write_text("seen\n")
    mounts = [{"source": f"./{hostile_path.name}", "target": "/data/x"}]  # relative to the job file
    file = daemon.counting("odd", 2, directory=directory, mounts=mounts)
    job_id = daemon.submit(file)
    assert daemon.ends(job_id)["outcome"] == "succeeded", daemon.told(job_id)
    assert "seen /data/x/a.txt" in daemon.log(job_id)
    for event in daemon.events(job_id):
        assert "\n" not in event["text"]


def test_an_image_that_is_offered_and_is_not_there_is_refused_in_words(counter: str) -> None:
    offered = {"counter": counter, "gone": "runner-test:no-such-image"}
    with service(executor="docker", allowed_images=offered) as daemon:
        daemon.start()
        said = daemon.runner("submit", str(daemon.counting("imageless", 3, image="gone")), code=2)
        assert "image.name: image runner-test:no-such-image: is not in the engine" in said
        assert daemon.client.jobs() == []
        daemon.assert_whole()


def test_a_name_that_could_be_misread_is_refused_in_words(daemon: Service) -> None:
    file = str(daemon.counting("fine", 1))
    for name in ("two words", "quo'te", "; echo gotcha", "-rf", "", "a" * 64, "new\nline"):
        said = daemon.runner("submit", file, f"--name={name}", code=2)
        assert "name" in said, said
        assert "Traceback" not in said


def test_a_job_file_of_a_hundred_megabytes_is_refused_before_it_is_read(daemon: Service) -> None:
    file = daemon.root / "huge.yaml"
    with file.open("wb") as stream:
        stream.truncate(100 * 1024**2)
    assert "huge.yaml" in daemon.runner("submit", str(file), code=2)


def test_paths_that_do_not_exist_are_told_all_at_once_with_their_lines(daemon: Service) -> None:
    wish: Json = {"mounts": [{"source": "gone", "target": "/data/x"}], "secrets": {"key": "gone-too"}}
    said = daemon.runner("submit", str(daemon.counting("lost", 1, **wish)), code=2)
    assert [("gone:" in said or "gone " in said), "gone-too" in said] == [True, True]
    assert said.count("lost.yaml:1:") == 2
