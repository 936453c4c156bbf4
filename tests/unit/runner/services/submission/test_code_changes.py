"""Differences of code that count: not those of the job files beside it."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.ports.code import CodeEntry, CodeSnapshots
from runner.files.revision import Revision
from runner.services.submission.code_changes import has_same_code

JOB = b"# a job\nworkload: {kind: program}\n"


class Snapshots:
    """Snapshots whose files are known by their content."""

    def __init__(self, **snapshots: Mapping[str, bytes]) -> None:
        self._known = snapshots

    def entries(self, _uid: int, snapshot: str) -> Mapping[str, CodeEntry]:
        return {path: CodeEntry("file", digest=text.hex()) for path, text in self._known[snapshot].items()}

    def read(self, _uid: int, digest: str, limit: int) -> bytes:
        return bytes.fromhex(digest)[:limit]


def revision(snapshot: str, file: str = "job.yaml") -> Revision:
    found = SimpleNamespace(
        uid=1, code=SimpleNamespace(snapshot=snapshot), path=f"/x/{file}", code_directory=lambda: "/x"
    )
    return cast("Revision", cast("Any", found))


@pytest.mark.parametrize(
    ("new", "file", "same"),
    [
        ({"job.yaml": JOB + b"seed: 1\n", "a.py": b"1"}, "job.yaml", True),
        ({"job.yaml": JOB, "other.yaml": JOB, "a.py": b"1"}, "job.yaml", True),
        ({"job.yaml": JOB, "other.yml": JOB, "a.py": b"1"}, "other.yml", True),
        ({"a.py": b"1"}, "job.yaml", True),
        ({"job.yaml": JOB, "x.yaml": b'{"name": "x", "workload": {}}', "a.py": b"1"}, "job.yaml", True),
        ({"job.yaml": JOB, "conf.yaml": b"lr: 1\n", "a.py": b"1"}, "job.yaml", False),
        ({"job.yaml": JOB, "conf/job.yaml": JOB, "a.py": b"1"}, "job.yaml", False),
        ({"job.yaml": JOB, "a.py": b"2"}, "job.yaml", False),
    ],
)
def test_job_files_beside_the_code_are_no_other_code(
    new: Mapping[str, bytes],
    file: str,
    same: bool,  # noqa: FBT001
) -> None:
    old: Iterable[Any] = {"job.yaml": JOB, "a.py": b"1"}
    snapshots = cast("CodeSnapshots", cast("Any", Snapshots(old=cast("Any", old), new=new)))
    assert has_same_code(snapshots, revision("old"), revision("new", file)) is same
