"""Facts about prepared data sets that need no reading of them."""

import json
from pathlib import Path

from runner.files.datasets import MANIFEST, content_digest, dataset_dir


def test_the_digest_of_a_data_set_is_that_of_its_recorded_files(tmp_path: Path) -> None:
    place = dataset_dir(tmp_path, "watch")
    place.mkdir(parents=True)
    digests = []
    for title, sha in (("one", "a"), ("other words", "a"), ("one", "b")):
        (place / MANIFEST).write_text(json.dumps({"title": title, "files": {"x": {"sha256": sha}}}))
        digests.append(content_digest(tmp_path, "watch"))
    assert digests[0] == digests[1] != digests[2]
    (place / MANIFEST).write_text("{")
    assert content_digest(tmp_path, "watch") is None
