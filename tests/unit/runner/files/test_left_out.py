"""Words about what a snapshot of code lacks."""

from pathlib import Path, PurePosixPath

import pytest

from runner.core.ports.code import LeftOut
from runner.files.left_out import describe, describe_unsent, find_missed

CODE = Path("/home/ada/project")
DATA = LeftOut("data", "directory", 12, 3 * 1024**3)
ARRAYS = LeftOut("sets/*.npy", "file", 5, 2048)
LINK = LeftOut("weights", "link", target="../big/weights")
SOCKET = LeftOut("x.sock", "special", target="a socket")

DATA_STEP = (
    "to take data along, write !/data into .runnerignore;"
    " or mount it (--mount /home/ada/project/data:/data/data) and name that path"
)
NAMED = "data (12 files, 3 GiB), sets/*.npy (5 files, 2 KiB), a.txt (0 B), and 2 more"
LINK_LINE = (
    "workload.code: weights is a link to ../big/weights, and is left out;"
    " mount it (--mount /home/ada/big/weights:/data/weights) and name that path"
)


def test_ignored_data_are_one_line_and_each_link_is_one() -> None:
    assert describe([LINK, SOCKET, DATA, ARRAYS, *[LeftOut("a.txt", "file")] * 3], CODE) == (
        LINK_LINE,
        "workload.code: x.sock is a socket, and is left out",
        f"workload.code: git ignores {NAMED}, and the job does not get them; {DATA_STEP}",
    )
    assert describe([], CODE) == ()
    *_, last = describe([LINK] * 9, CODE)
    assert last == "workload.code: 4 more links and the like are left out"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("data", DATA),
        ("data/train/a.bin", DATA),
        ("./data/a", DATA),
        ("/code/data/a", DATA),
        ("/home/ada/project/data/a", DATA),
        ("sets/one.npy", ARRAYS),
        ("weights/x", LINK),
        ("database", None),
        ("sets/one.csv", None),
        ("/data/data/a", None),
    ],
)
def test_a_missing_path_finds_what_was_left_out(path: str, found: LeftOut | None) -> None:
    told = find_missed([LINK, DATA, ARRAYS], CODE, path)
    assert told == (None if found is None else describe([found], CODE)[0].replace(" them;", " it;"))


def test_what_a_job_has_at_another_place_is_not_told_as_missing() -> None:
    given = (
        (Path("/home/ada/project/data"), PurePosixPath("/data/corpus")),
        (Path("/home/ada/project/../big"), PurePosixPath("/data/big")),
    )
    arrays = LeftOut("data/*.npy", "file", 5, 2048)
    assert describe([LINK, DATA, arrays], CODE, given) == ()
    [line] = describe([DATA, ARRAYS], CODE, given)
    assert "git ignores sets/*.npy (5 files, 2 KiB), and" in line
    assert find_missed([LINK, DATA], CODE, "data/a.bin", given) == "data: the job has it at /data/corpus"
    assert find_missed([LINK, DATA], CODE, "weights", given) == "weights: the job has it at /data/big/weights"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../root/x", "/", "/var/lib/docker"])
def test_a_link_to_what_no_job_sees_names_no_mount(target: str) -> None:
    [line] = describe([LeftOut("x", "link", target=target)], CODE)
    assert line.endswith("and is left out; it belongs to the system, which no job sees")


def test_the_target_of_a_mount_is_none_that_is_reserved() -> None:
    [line] = describe([LeftOut("workload", "directory", 1, 1)], CODE)
    assert "--mount /home/ada/project/workload:/data/my-workload" in line


def test_what_is_not_sent_to_a_server_is_named_without_a_mount_of_this_machine() -> None:
    [told] = describe_unsent([DATA, ARRAYS])
    named = "data (12 files, 3 GiB), sets/*.npy (5 files, 2 KiB)"
    step = "copy them to the server and mount them, or name them in .runnerignore, such as !/data"
    assert told == f"workload.code: git ignores {named}, and they are not sent; {step}"
    assert describe_unsent([]) == ()


def test_what_was_not_measured_to_the_end_is_more() -> None:
    [told] = describe([LeftOut("data", "directory", 10_000, 5000, is_more=True)], None)
    assert "data (more than 10000 files, 4.9 KiB)" in told


@pytest.mark.parametrize(
    ("files", "fact"),
    [(1, "w.pt is a pointer"), (3, "w.pt and 2 more files beside it are pointers")],
)
def test_pointers_of_git_lfs_are_one_line(files: int, fact: str) -> None:
    pointer = LeftOut("w.pt", "pointer", files)
    [line] = describe([pointer], CODE)
    assert line == f"workload.code: {fact} of Git LFS without content; git lfs pull fetches it"
    assert describe_unsent([pointer]) == ()
