"""Every bad job file under ``bad_jobs`` gives exactly the lines beside it."""

from pathlib import Path

import pytest

from jobs.contract import KINDS
from runner.adapters.host.paths import check_path
from runner.base.textfile import FileError, read_source
from runner.files.job.load import parse_jobs
from runner.files.policy.job_policy import JobReferences

HERE = Path(__file__).parent / "bad_jobs"
NAMES = sorted(path.stem for path in HERE.glob("*.yaml"))


def complaints(path: Path) -> tuple[str, ...]:
    with pytest.raises(FileError) as caught:
        parse_jobs(read_source(path), path, besides=JobReferences(path.parent, check_path).problems)
    return caught.value.lines


def test_there_are_many_of_them_and_each_has_its_expectation() -> None:
    assert len(NAMES) >= 45
    assert sorted(path.stem for path in HERE.glob("*.expected")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_job_file_gives_exactly_the_expected_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    *others, last = (f'"{kind}"' for kind in KINDS)
    expected = (HERE / f"{name}.expected").read_text(encoding="utf-8").replace("<kinds>", ", ".join(KINDS))
    expected = expected.replace('<"kinds">', f"{', '.join(others)} or {last}")
    assert list(complaints(Path(f"{name}.yaml"))) == expected.splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_no_complaint_ends_its_line_or_grows_without_bound(name: str) -> None:
    for line in complaints(HERE / f"{name}.yaml"):
        assert line.isprintable()
        assert len(line) < 300 + len(str(HERE))


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (
            b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
            "1:1: byte 0x89 is not UTF-8 text; save the file as UTF-8",
        ),
        (b"\x7fELF\x02\x01\x01\x00", "1:1: contains the control character U+007F, so it is not a text file"),
        (b"name: a\nseed: \x00\n", "2:7: contains the control character U+0000, so it is not a text file"),
        (b"name: caf\xe9\n", "1:10: byte 0xe9 is not UTF-8 text; save the file as UTF-8"),
        ("name: x\n".encode("utf-16"), "1:1: is UTF-16 text; save it as UTF-8"),
        (b"\xef\xbb\xbf", '1:1: the file is empty; "runner init" writes one to start from'),
    ],
)
def test_binary_junk_is_refused_in_one_line(tmp_path: Path, raw: bytes, fact: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(raw)
    assert complaints(path) == (f"{path}:{fact}",)


def test_a_file_of_100_mb_is_refused_without_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1000**2)
    assert complaints(path) == (f"{path}: larger than 1 MiB, so not a job file",)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a job.yaml", "a job.yaml"),
        ('it\'s "quoted".yaml', 'it\'s "quoted".yaml'),
        ("two\nlines.yaml", "two\\nlines.yaml"),
        ("$(touch x); echo.yaml", "$(touch x); echo.yaml"),
        ("red\x1b[31m.yaml", "red\\x1b[31m.yaml"),
        ("latin-\udce9.yaml", "latin-\\udce9.yaml"),
    ],
)
def test_a_hostile_file_name_is_shown_on_one_line(tmp_path: Path, name: str, shown: str) -> None:
    path = tmp_path / name
    path.write_text("seed: -1\nworkload: {kind: causal_lm, data: stdlib}\n")
    assert [line.removeprefix(f"{tmp_path}/").split(":1:7:")[0] for line in complaints(path)] == [shown]


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("nowhere.yaml", 'no such file; "runner init" writes one to start from'),
        (".", "is a directory, not a job file"),
        ("dangling.yaml", "is a symbolic link to a missing file"),
        ("round.yaml", "cannot be read: Too many levels of symbolic links"),
        ("x" * 300, "cannot be read: File name too long"),
        ("nul\0.yaml", "is not a valid file name"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, name: str, fact: str) -> None:
    (tmp_path / "dangling.yaml").symlink_to("gone.yaml")
    (tmp_path / "round.yaml").symlink_to("round.yaml")
    (line,) = complaints(tmp_path / name)
    assert line.endswith(f": {fact}")


def test_more_than_a_hundred_problems_are_counted_instead_of_shown() -> None:
    lines = complaints(HERE / "many_unknown_fields.yaml")
    assert len(lines) == 101
    assert lines[-1].endswith(": has more than 100 problems; the others are not listed")
