"""Checkpoints that programs save on their own, in run directories with real files."""

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.adapters.host import program_checkpoints, program_files
from runner.adapters.host.program_checkpoints import ProgramCheckpoints
from runner.base.errors import Unavailable
from runner.core.ports.checkpoints import ProgramCheckpoint, ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.users import Owner

ME = Owner(os.geteuid(), os.getegid(), "me")
NUMBERED = ProgramFiles("out/checkpoint-*", 2)
FIXED = ProgramFiles("state.pt", 2)
LONG_AGO_S = 1_000_000_000


def archive(text: bytes = b"weights") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        target.writestr(zipfile.ZipInfo("data.pkl"), text * 50)  # its time is fixed
    return file.getvalue()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    directory = tmp_path / "work" / "1"
    directory.mkdir(parents=True)
    (tmp_path / "lineages/1").mkdir(parents=True)
    return directory


@pytest.fixture
def checkpoints(tmp_path: Path) -> ProgramCheckpoints:
    return ProgramCheckpoints(tmp_path, ME)


def write(path: Path, content: bytes = b"x", age_s: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (LONG_AGO_S - age_s, LONG_AGO_S - age_s))
    return path


Saved = Callable[[ProgramFiles], SavedCheckpoints]


@pytest.fixture
def saved(checkpoints: ProgramCheckpoints) -> Saved:
    return lambda wanted: checkpoints.saved(1, wanted, Verification.CONTENT)


# --- with numbers in their names


def test_the_number_in_a_name_is_the_step_and_the_highest_is_the_newest(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    for step in (500, 1000, 90):
        write(work / f"out/checkpoint-{step}/model.bin")
    assert saved(NUMBERED).steps == (1000, 500, 90)
    assert checkpoints.choose(1, 2, NUMBERED, None) == ProgramCheckpoint(1000, "out/checkpoint-1000")
    older = checkpoints.choose(1, 2, NUMBERED, 90)
    assert older is not None
    assert (older.step, older.path) == (90, "out/checkpoint-90")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=1200.ckpt", 1200),
        ("model_7.h5", 7),
        ("v2/step-0012.pt", 12),
        ("ckpt-5.safetensors.bak", 5),
    ],
)
def test_numbers_are_found_in_the_usual_names(work: Path, saved: Saved, name: str, step: int) -> None:
    write(work / name)
    pattern = "/".join("*" for _ in Path(name).parts)
    assert saved(ProgramFiles(pattern, 2)).steps == (step,)


@pytest.mark.parametrize(
    ("torn", "fact"),
    [
        (("model.pt", archive()[:-30]), "ends before the index of its archive"),
        (("model.pt", b""), "is empty"),
        (("a.safetensors", struct.pack("<Q", 99) + b"{"), "ends within its header"),
        (("a.safetensors", struct.pack("<Q", 2) + b"[]"), "has a header that cannot be read"),
        (("state.json", b'{"a": '), "is no complete JSON"),
        (("rng.pkl", b"\x80\x04}"), "ends in the middle of its pickle"),
    ],
)
def test_a_torn_file_is_told_and_the_one_before_is_taken(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved, torn: tuple[str, bytes], fact: str
) -> None:
    file, content = torn
    write(work / "out/checkpoint-1/other")
    write(work / "out/checkpoint-2/other")
    write(work / f"out/checkpoint-2/{file}", content)
    found = saved(NUMBERED)
    assert (found.steps, found.rejected) == ((1,), (f"out/checkpoint-2: {file} {fact}",))
    chosen = checkpoints.choose(1, 2, NUMBERED, None)
    assert chosen is not None
    assert chosen.step == 1
    names = sorted(path.name for path in (work / "out").iterdir())
    assert names == [".checkpoint-2.torn", "checkpoint-1"]  # a script that looks itself finds the whole one


def test_whole_files_of_known_formats_are_accepted(work: Path, saved: Saved) -> None:
    header = json.dumps({"__metadata__": {"a": "b"}, "w": {"data_offsets": [0, 4]}}).encode()
    write(work / "out/checkpoint-1/model.pt", archive())
    write(work / "out/checkpoint-1/a.safetensors", struct.pack("<Q", len(header)) + header + b"1234")
    write(work / "out/checkpoint-1/s.json", b"{}")
    write(work / "out/checkpoint-1/r.pkl", b"\x80\x04}.")
    assert saved(NUMBERED).steps == (1,)
    write(work / "out/checkpoint-1/a.safetensors", struct.pack("<Q", len(header)) + header + b"123")
    assert "bytes of" in saved(NUMBERED).rejected[0]


def test_the_newest_lacks_no_file_that_the_one_before_has(work: Path, saved: Saved) -> None:
    for step in (1, 2):
        for name in ("model.bin", f"global_step{step}/shard.bin", "trainer_state.json"):
            write(work / f"out/checkpoint-{step}/{name}", b"{}")
    assert saved(NUMBERED).steps == (2, 1)
    (work / "out/checkpoint-2/trainer_state.json").unlink()
    assert saved(NUMBERED).rejected == ("out/checkpoint-2: lacks trainer_state.json, which checkpoint-1 has",)


def test_what_is_being_written_is_not_looked_at_while_the_program_runs(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    write(work / "out/checkpoint-1/model.bin")
    (write(work / "out/checkpoint-2/model.bin")).write_bytes(b"now")
    assert checkpoints.saved(1, NUMBERED, Verification.SIZES).steps == (1,)
    assert checkpoints.saved(1, NUMBERED, Verification.CONTENT).steps == (2, 1)


def test_links_pipes_and_hidden_files_are_no_checkpoints(work: Path, tmp_path: Path, saved: Saved) -> None:
    write(tmp_path / "secret/checkpoint-9/model.bin")
    (work / "out").mkdir()
    (work / "out/checkpoint-9").symlink_to(tmp_path / "secret/checkpoint-9")
    os.mkfifo(work / "out/checkpoint-8")
    (work / "out/checkpoint-7").mkdir()
    (work / "linked").symlink_to(tmp_path / "secret")
    assert saved(NUMBERED) == SavedCheckpoints()
    assert saved(ProgramFiles("linked/checkpoint-*", 2)) == SavedCheckpoints()
    assert saved(ProgramFiles("none/*", 2)) == SavedCheckpoints()


def test_a_look_has_an_end(work: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "MAX_ENTRIES", 3)
    for step in range(4):
        write(work / f"out/checkpoint-{step}/model.bin")
    found = saved(NUMBERED)
    assert (found.steps, found.complete) == ((), False)


def test_what_came_with_the_code_is_no_checkpoint_until_it_is_written_again(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    old = write(work / "out/checkpoint-900/model.bin")
    checkpoints.ignore_present(1, NUMBERED)
    assert saved(NUMBERED).steps == ()
    assert checkpoints.choose(1, 2, NUMBERED, None) is None
    write(work / "out/checkpoint-1/model.bin")
    assert saved(NUMBERED).steps == (1,)
    write(old, b"again", age_s=5)
    assert saved(NUMBERED).steps == (900, 1)


def test_a_pattern_may_name_the_home_of_the_lineage(tmp_path: Path, checkpoints: ProgramCheckpoints) -> None:
    write(tmp_path / "homes/1/out/checkpoint-4")
    wanted = ProgramFiles("/job/home/out/checkpoint-*", 2)
    assert checkpoints.choose(1, 2, wanted, None) == ProgramCheckpoint(4, "out/checkpoint-4", in_home=True)


# --- set aside


def test_later_checkpoints_are_set_aside_for_an_attempt_from_an_older_one(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    """A script that looks for its newest finds the one that is meant, and so does the next attempt."""
    for step in (100, 200, 300, 400):
        write(work / f"out/checkpoint-{step}/model.bin", b"%d" % step, age_s=1000 - step)
    chosen = checkpoints.choose(1, 3, NUMBERED, 200)
    moved = ("out/checkpoint-300", "out/checkpoint-400")
    assert chosen == ProgramCheckpoint(
        200, "out/checkpoint-200", set_aside=moved, directory="lineages/1/set-aside/3"
    )
    assert sorted(path.name for path in (work / "out").iterdir()) == ["checkpoint-100", "checkpoint-200"]
    assert (tmp_path / "lineages/1/set-aside/3/out/checkpoint-400/model.bin").read_bytes() == b"400"
    assert (saved(NUMBERED).steps, saved(NUMBERED).set_aside) == ((200, 100), (400, 300))
    again = checkpoints.choose(1, 4, NUMBERED, None)
    assert again == ProgramCheckpoint(200, "out/checkpoint-200")


def test_what_was_set_aside_is_put_back_by_its_step(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    for step in (100, 200, 300, 400, 500):
        write(work / f"out/checkpoint-{step}/model.bin", b"%d" % step, age_s=1000 - step)
    checkpoints.choose(1, 2, NUMBERED, 100)
    write(work / "out/checkpoint-200/model.bin", b"another 200")
    write(work / "out/checkpoint-450/model.bin", b"another 450")
    chosen = checkpoints.choose(1, 3, NUMBERED, 400)
    assert chosen == ProgramCheckpoint(
        400, "out/checkpoint-400", set_aside=("out/checkpoint-450",), directory="lineages/1/set-aside/3"
    )
    assert saved(NUMBERED).steps == (400, 300, 200, 100)
    assert (work / "out/checkpoint-200/model.bin").read_bytes() == b"another 200"
    assert saved(NUMBERED).set_aside == (500, 450, 200)


def test_a_file_without_a_number_goes_by_its_time_beside_numbered_ones(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("*.ckpt", 2)
    write(work / "step=1.ckpt", age_s=9)
    write(work / "step=2.ckpt", age_s=5)
    write(work / "last.ckpt", age_s=4)
    write(work / "first.ckpt", age_s=20)
    checkpoints.choose(1, 2, wanted, 1)
    assert sorted(path.name for path in work.iterdir()) == ["first.ckpt", "step=1.ckpt"]


def test_nothing_is_set_aside_for_a_step_that_is_not_there(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    write(work / "out/checkpoint-300/model.bin")
    assert checkpoints.choose(1, 2, NUMBERED, 200) == ProgramCheckpoint(300, "out/checkpoint-300")
    assert (work / "out/checkpoint-300").is_dir()


def test_a_link_in_the_place_of_what_is_set_aside_is_not_followed(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    for step in (1, 2):
        write(work / f"out/checkpoint-{step}/model.bin")
    write(tmp_path / "elsewhere/7/out/checkpoint-9/model.bin")
    (tmp_path / "lineages/1/set-aside").symlink_to(tmp_path / "elsewhere")
    assert saved(NUMBERED).set_aside == ()
    with pytest.raises(Unavailable, match="checkpoints after 1 cannot be set aside"):
        checkpoints.choose(1, 2, NUMBERED, 1)
    assert (work / "out/checkpoint-2").is_dir()


def test_later_versions_of_one_path_are_set_aside_too(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    wanted = ProgramFiles("state.pt", 5)
    versions = {number: archive(b"%d" % number) for number in range(1, 4)}
    for number, content in versions.items():
        write(work / "state.pt", content, age_s=9 - number)
        assert saved(wanted).steps[0] == number
    chosen = checkpoints.choose(1, 2, wanted, 1)
    assert chosen == ProgramCheckpoint(1, "state.pt", set_aside=("2", "3"), directory="kept/1/set-aside/2")
    assert (work / "state.pt").read_bytes() == versions[1]
    assert (saved(wanted).steps, saved(wanted).set_aside) == ((1,), (3, 2))
    assert checkpoints.choose(1, 3, wanted, None) == ProgramCheckpoint(1, "state.pt")
    write(work / "state.pt", archive(b"new"))
    assert saved(wanted).steps == (4, 1)  # no number is given twice
    back = checkpoints.choose(1, 4, wanted, 3)
    assert back == ProgramCheckpoint(3, "state.pt", set_aside=("4",), directory="kept/1/set-aside/4")
    assert (work / "state.pt").read_bytes() == versions[3]
    assert (tmp_path / "kept/1/set-aside/4/4").is_dir()


# --- without


def test_whole_versions_of_one_path_are_kept_and_numbered(work: Path, tmp_path: Path, saved: Saved) -> None:
    for number in range(1, 5):
        write(work / "state.pt", archive(b"%d" % number), age_s=9 - number)
        assert saved(FIXED).steps[0] == number
    assert saved(FIXED).steps == (4, 3)
    assert sorted(path.name for path in (tmp_path / "kept/1").iterdir()) == ["3", "4"]


@pytest.mark.parametrize("torn", [archive(b"2")[:-9], b""])
def test_a_torn_file_is_replaced_by_its_last_whole_version(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved, torn: bytes
) -> None:
    write(work / "state.pt", archive(b"1"), age_s=5)
    assert saved(FIXED).steps == (1,)
    write(work / "state.pt", torn)
    found = saved(FIXED)
    assert (found.steps, len(found.rejected)) == ((1,), 1)
    assert checkpoints.choose(1, 2, FIXED, None) == ProgramCheckpoint(1, "state.pt")
    assert (work / "state.pt").read_bytes() == archive(b"1")
    assert sorted(path.name for path in work.iterdir()) == ["state.pt"]
    assert checkpoints.choose(1, 2, FIXED, None) == ProgramCheckpoint(1, "state.pt")  # nothing is new


def test_a_directory_without_a_number_is_put_back_with_all_of_its_files(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    wanted = ProgramFiles("out/last", 2)
    write(work / "out/last/model.pt", archive())
    write(work / "out/last/deep/er/rng.pkl", b"\x80\x04}.")
    assert saved(wanted).steps == (1,)
    write(work / "out/last/model.pt", b"PK\x03\x04")
    (work / "out/last/deep/er/rng.pkl").unlink()
    assert checkpoints.choose(1, 2, wanted, None) == ProgramCheckpoint(1, "out/last")
    assert (work / "out/last/model.pt").read_bytes() == archive()
    assert (work / "out/last/deep/er/rng.pkl").read_bytes() == b"\x80\x04}."
    assert sorted(path.name for path in (work / "out").iterdir()) == ["last"]


def test_a_removed_file_is_put_back(work: Path, checkpoints: ProgramCheckpoints, saved: Saved) -> None:
    write(work / "out/state.pt", archive())
    wanted = ProgramFiles("out/state.pt", 2)
    assert saved(wanted).steps == (1,)
    (work / "out/state.pt").unlink()
    (work / "out").rmdir()
    assert checkpoints.choose(1, 2, wanted, None) == ProgramCheckpoint(1, "out/state.pt")
    assert (work / "out/state.pt").read_bytes() == archive()


def test_a_link_in_the_way_is_not_followed(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    wanted = ProgramFiles("out/state.pt", 2)
    write(work / "out/state.pt", archive())
    assert saved(wanted).steps == (1,)
    (work / "out/state.pt").unlink()
    (work / "out").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (work / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="cannot be put back"):
        checkpoints.choose(1, 2, wanted, None)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_version_that_changes_while_it_is_copied_is_not_kept(
    work: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = write(work / "state.pt", archive())
    copy = program_checkpoints._copy

    def meanwhile(source: int, target: int) -> None:
        copy(source, target)
        state.write_bytes(archive(b"other"))

    monkeypatch.setattr(program_checkpoints, "_copy", meanwhile)
    assert saved(FIXED).steps == ()


def write_now(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_file_that_is_written_over_all_the_time_is_kept_by_a_copy(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    """It is never two seconds old; without a copy, a torn one would hold the job."""
    for number in (1, 2):
        write_now(work / "state.pt", archive(b"%d" % number))
        assert checkpoints.saved(1, FIXED, Verification.SIZES).steps[0] == number
    last = (work / "state.pt").read_bytes()
    write_now(work / "state.pt", archive(b"3")[:-20])
    assert checkpoints.saved(1, FIXED, Verification.SIZES).rejected == ()  # it is being written
    found = checkpoints.saved(1, FIXED, Verification.CONTENT)
    assert (found.steps, len(found.rejected)) == ((2, 1), 1)
    assert checkpoints.choose(1, 2, FIXED, None) == ProgramCheckpoint(2, "state.pt")
    assert (work / "state.pt").read_bytes() == last


def test_a_copy_that_was_written_over_meanwhile_is_made_again(
    work: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_now(work / "state.pt", archive(b"first"))
    copy, copies = program_checkpoints._copy, []

    def meanwhile(source: int, target: int) -> None:
        copy(source, target)
        copies.append(source)
        if len(copies) < 3:
            write_now(work / "state.pt", archive(b"other" * len(copies)))

    monkeypatch.setattr(program_checkpoints, "_copy", meanwhile)
    assert checkpoints.saved(1, FIXED, Verification.SIZES).steps == (1,)
    assert len(copies) == 3


def test_a_format_that_does_not_show_its_end_must_be_left_alone_for_a_second(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("state.bin", 2)
    write_now(work / "state.bin", b"half of")
    assert checkpoints.saved(1, wanted, Verification.SIZES) == SavedCheckpoints()
    write(work / "state.bin", b"half of it")
    assert checkpoints.saved(1, wanted, Verification.SIZES).steps == (1,)


def test_a_directory_that_is_written_over_is_kept_with_all_files_of_the_last_version(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("last", 3)
    for name in ("model.pt", "rng.pt"):
        write(work / "last" / name, archive())
    assert checkpoints.saved(1, wanted, Verification.SIZES).steps == (1,)
    (work / "last/rng.pt").unlink()
    write_now(work / "last/model.pt", archive(b"2"))
    assert checkpoints.saved(1, wanted, Verification.SIZES).steps == (1,)
    write_now(work / "last/rng.pt", archive(b"2"))
    assert checkpoints.saved(1, wanted, Verification.SIZES).steps == (2, 1)


def test_large_versions_are_not_copied_at_every_look(
    work: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_checkpoints, "LARGE_BYTES", 10)
    for number, steps in ((1, (1,)), (2, (1,))):
        write(work / "state.pt", archive(b"%d" % number), age_s=9 - number)
        assert checkpoints.saved(1, FIXED, Verification.SIZES).steps == steps
    assert checkpoints.saved(1, FIXED, Verification.KNOWN).steps == (1,)
    assert checkpoints.saved(1, FIXED, Verification.CONTENT).steps == (2, 1)


def test_a_damaged_note_of_a_version_is_left_out(work: Path, tmp_path: Path, saved: Saved) -> None:
    write(work / "state.pt", archive())
    assert saved(FIXED).steps == (1,)
    (tmp_path / "kept/1/1/version.json").write_text("{")
    assert saved(FIXED).steps == (2,)
