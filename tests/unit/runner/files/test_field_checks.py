"""Names that are made for jobs."""

import pytest

from runner.files.field_checks import make_job_name


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("größe ✓", "grosse"),
        ("Łódź", "Lodz"),
        ("crème", "creme"),
        ("数据", "job"),
        ("7", "job-7"),
    ],
)
def test_a_file_name_gives_a_readable_job_name(stem: str, name: str) -> None:
    assert make_job_name(stem) == name
