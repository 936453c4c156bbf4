"""Links in mounted data that lead to nothing in the job."""

from pathlib import Path

from runner.adapters.host.links import find_links_out
from runner.files.job.load import parse_job
from runner.services.submission.mount_links import describe_links


def told(base: Path, *mounts: str) -> list[str]:
    lines = "".join(
        f"  - {{source: {each.split(':')[0]}, target: {each.split(':')[1]}}}\n" for each in mounts
    )
    text = f"workload: {{kind: program, command: [x]}}\nmounts:\n{lines}"
    return list(describe_links(parse_job(text.encode(), base / "job.yaml"), base, find_links_out))


def test_links_out_of_a_mount_are_told_with_the_mount_that_would_help(tmp_path: Path) -> None:
    data, big = tmp_path / "set", tmp_path / "big"
    (data / "deep").mkdir(parents=True)
    big.mkdir()
    (data / "train").symlink_to("../big")
    (data / "deep/val").symlink_to(big)
    (data / "deep/own").symlink_to("../deep")
    (data / "file").write_text("x")
    fact = f"mounts[0].source: deep/val is a link to {big} (and 1 more), which the job does not have"
    step = f"mount that, too: --mount {big}:/data/big, and name that path"
    assert told(tmp_path, "set:/data/set") == [f"{fact}; {step}"]
    (data / "deep/val").unlink()
    line = "mounts[0].source: train is a link to ../big, which the job does not have; mount that, too:"
    assert told(tmp_path, "set:/data/set") == [f"{line} --mount {big}:/data/big"]
    assert told(tmp_path, "set:/data/set", "big:/data/big") == []
    assert told(tmp_path, "set/file:/data/file") == []


def test_no_mount_is_named_that_would_be_refused(tmp_path: Path) -> None:
    data, other = tmp_path / "set", tmp_path / "workload"
    data.mkdir()
    other.mkdir()
    (data / "gone").symlink_to("/nowhere")
    assert told(tmp_path, "set:/data/set") == []
    (data / "accounts").symlink_to("/etc/passwd")
    [line] = told(tmp_path, "set:/data/set")
    assert line.endswith("which the job does not have; it belongs to the system, which no job sees")
    (data / "accounts").unlink()
    (data / "w").symlink_to(other)
    [line] = told(tmp_path, "set:/data/set")
    assert line.endswith(f"--mount {other}:/data/my-workload, and name that path")
    (data / "w").unlink()
    (data / "w").symlink_to("../workload")
    [line] = told(tmp_path, "set:/data/set")
    assert line.endswith(f"--mount {other}:/data/my-workload, and name that path")


def test_so_many_entries_are_looked_at_and_no_more(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}").symlink_to("/usr")
    assert len(find_links_out(tmp_path)) == 20
    assert find_links_out(tmp_path / "none") == ()
