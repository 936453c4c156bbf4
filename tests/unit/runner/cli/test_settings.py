"""``runner settings check`` prints what a file sets."""

from pathlib import Path

from tests.unit.runner.cli.conftest import Invoke


def test_sizes_have_a_unit_as_a_person_writes_them(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("code_bytes: 300MiB\ndisk_quota: {bytes_per_job: 1TB, files_per_job: 2000}\n")
    assert invoke("settings", "check", str(file)).stdout.splitlines()[1:] == [
        'code_bytes: "300MiB"',
        'disk_quota: {"bytes_per_job": "1TB", "files_per_job": 2000}',
    ]
