"""The lines of a pull."""

import pytest

from images.errors import BuildFailed
from images.pull_progress import PullProgress

MIB = 1024**2


def test_a_pull_says_what_is_there_of_all_layers() -> None:
    progress = PullProgress("lab:1", every_s=0)
    assert progress.line({"status": "Pulling from lab", "id": "1"}) is None
    downloading = {"status": "Downloading", "progressDetail": {"current": MIB, "total": 10 * MIB}}
    assert progress.line({**downloading, "id": "a"}) == "pull lab:1: 1 of 10 MiB"
    assert progress.line({**downloading, "id": "b"}) == "pull lab:1: 2 of 20 MiB"
    assert progress.line({"status": "Download complete", "id": "a"}) == "pull lab:1: 11 of 20 MiB"
    extracting = {"status": "Extracting", "progressDetail": {"current": 1, "total": 2}, "id": "a"}
    assert progress.line(extracting) == "pull lab:1: 11 of 20 MiB"
    assert progress.line({"status": "Digest: sha256:1"}) == "Digest: sha256:1"
    with pytest.raises(BuildFailed, match="pull lab:1: unauthorized"):
        progress.line({"error": "unauthorized"})


def test_it_does_not_say_it_for_every_record() -> None:
    progress = PullProgress("lab:1", every_s=3600)
    record = {"status": "Downloading", "progressDetail": {"current": 1, "total": 2}, "id": "a"}
    assert progress.line(record) is None
