"""Checkpoints that programs save on their own, in run directories with real files."""

import gzip
import io
import json
import lzma
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from shutil import rmtree as remove_tree
from typing import Final

import pytest

from jobs.contract import CheckpointInvalid
from runner.adapters.host import program_checkpoints, program_files
from runner.adapters.host.job_checkpoints import CheckpointVerifier, ProgramCheckpoints
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.set_aside import remove
from runner.base.errors import Refused, RunnerError, Unavailable, UsageError
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


def program_of(root: Path, verifier: CheckpointVerifier | None = None) -> ProgramCheckpoints:
    return HostRunDirectory(root, ME, verifier)._program_checkpoints


@pytest.fixture
def checkpoints(tmp_path: Path) -> ProgramCheckpoints:
    return program_of(tmp_path)


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
        ("exp/12epoch.pth", 12),
        ("exp/20000Steps.pt", 20000),
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


@pytest.mark.parametrize(
    ("files", "is_whole"),
    [
        ("model.bin eval_results.json", True),
        ("model.bin rank_1.log", True),
        ("model.bin plots/loss.png", True),
        ("model.bin config.json", False),
        ("model.bin modeling_own.py", False),
        ("a.csv b.csv", False),
    ],
)
def test_the_newest_may_lack_results_and_logs_but_no_settings(
    work: Path, saved: Saved, files: str, *, is_whole: bool
) -> None:
    """Evaluations are not made at each save; a directory that has nothing but such files needs them."""
    first, last = files.split()
    for step, name in ((1, first), (1, last), (2, first)):
        write(work / f"out/checkpoint-{step}/{name}", b"{}", age_s=9 - step)
    found = () if is_whole else (f"out/checkpoint-2: lacks {last}, which checkpoint-1 has",)
    assert saved(NUMBERED).rejected == found


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        (("zero_pp_rank_0.pt zero_pp_rank_1.pt", "zero_pp_rank_0.pt"), "zero_pp_rank_1.pt"),
        (("at{0}/rank_0.pt at{0}/rank_1.pt", "at{0}/rank_0.pt"), "at500/rank_1.pt"),
        (("__0_0.distcp __1_0.distcp .metadata", "__0_0.distcp .metadata"), "__1_0.distcp"),
        (("old_1.pt old_2.pt", "old_2.pt old_3.pt"), None),
    ],
)
def test_a_checkpoint_has_the_files_of_all_ranks_of_its_attempt(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved, files: tuple[str, str], lacks: str | None
) -> None:
    before, after = files

    def save(step: int, names: str) -> None:
        for name in names.format(step).split():
            write(work / f"out/checkpoint-{step}" / name, archive(b"%d" % step), age_s=9999 - step)

    save(500, before)
    assert saved(NUMBERED).steps == (500,)
    save(1000, after)
    told = () if lacks is None else (f"out/checkpoint-1000: lacks {lacks}, which checkpoint-500 has",)
    assert saved(NUMBERED).rejected == told
    checkpoints.choose(1, 2, NUMBERED, None)
    save(1500, after)  # the next attempt has one process less
    assert saved(NUMBERED).steps[0] == 1500


def test_an_index_beside_the_parts_that_it_names_is_whole(work: Path, saved: Saved) -> None:
    write(work / "out/w.safetensors.index.json", b'{"weight_map": {"a": "w-1.bin"}}')
    write(work / "out/w-1.bin")
    assert saved(ProgramFiles("out/w*", 2)).rejected == ()


def test_a_directory_that_is_filled_slowly_is_one_checkpoint(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints
) -> None:
    for step in (500, 1000):
        for age, name in enumerate(("model.bin", "optimizer.bin", "state.json")):
            write(work / f"out/checkpoint-{step}" / name, b"{}", age_s=2000 - step - age)
            assert checkpoints.saved(1, NUMBERED, Verification.SIZES).are_steps
    assert checkpoints.saved(1, NUMBERED, Verification.SIZES).steps == (1000, 500)
    assert not list((tmp_path / "kept/1").glob("[0-9]*"))


def test_a_directory_that_was_passed_over_does_not_become_newer_than_the_next_one(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    """The first has no other to be compared with, so it has to rest; the second is seen complete before."""
    for step in (5, 10):
        for name in ("model.json", "optimizer.json"):
            write_now(work / f"out/checkpoint-{step}" / name, b"{}")
    assert checkpoints.saved(1, NUMBERED, Verification.SIZES).steps == (10, 5)
    assert checkpoints.saved(1, NUMBERED, Verification.CONTENT).steps == (10, 5)
    assert checkpoints.choose(1, 2, NUMBERED, None) == ProgramCheckpoint(10, "out/checkpoint-10")


def test_what_is_added_to_the_checkpoint_of_a_resume_is_no_progress(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    write(work / "out/checkpoint-500/model.bin", age_s=9)
    checkpoints.saved(1, NUMBERED, Verification.SIZES)
    checkpoints.choose(1, 2, NUMBERED, None)
    write(work / "out/checkpoint-500/eval.json", b"{}")
    assert checkpoints.saved(1, NUMBERED, Verification.CONTENT, 2).advanced is False


@pytest.mark.parametrize("name", ["eval_results.json", "merged/model.bin"])
def test_a_file_that_is_added_to_an_older_checkpoint_makes_it_no_newer(
    work: Path, tmp_path: Path, name: str
) -> None:
    """Each look is of another daemon, which remembers nothing."""
    for step in (500, 1000):
        write(work / f"out/checkpoint-{step}/model.bin", b"%d" % step, age_s=1100 - step)
        program_of(tmp_path).saved(1, NUMBERED, Verification.SIZES)
    for age_s in (50, 40):
        write(work / f"out/checkpoint-500/{age_s}-{name}", b"{}", age_s)
        assert program_of(tmp_path).saved(1, NUMBERED, Verification.CONTENT).steps == (1000, 500)
    assert program_of(tmp_path).choose(1, 2, NUMBERED, None) == ProgramCheckpoint(1000, "out/checkpoint-1000")
    write(work / "out/checkpoint-500/model.bin", b"again", age_s=30)
    chosen = program_of(tmp_path).choose(1, 3, NUMBERED, None)
    assert chosen is not None
    assert chosen.path == "out/checkpoint-500"


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
    for pattern in ("out/checkpoint-*", "linked/checkpoint-*", "none/*"):
        found = saved(ProgramFiles(pattern, 2))
        assert (found.steps, found.rejected, found.complete) == ((), (), True)


def test_a_look_has_an_end(work: Path, saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "MAX_ENTRIES", 3)
    for step in range(4):
        write(work / f"out/checkpoint-{step}/model.bin")
    found = saved(NUMBERED)
    assert (found.steps, found.complete) == ((), False)


def test_files_that_the_pattern_does_not_name_are_not_too_many(
    work: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_files, "MAX_ENTRIES", 3)
    write(work / "out/checkpoint-1.pt", archive())
    for number in range(9):
        write(work / f"out/sample_{number}.png")
    wanted = ProgramFiles("out/*.pt", 2)
    assert checkpoints.choose(1, 2, wanted, None) == ProgramCheckpoint(1, "out/checkpoint-1.pt")
    monkeypatch.setattr(program_files, "MAX_NAMES", 9)
    assert checkpoints.saved(1, wanted, Verification.CONTENT).complete is False


def test_a_resume_is_refused_where_there_are_too_many_files_to_tell_the_newest(
    work: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_files, "MAX_ENTRIES", 3)
    for step in range(4):
        write(work / f"out/checkpoint-{step}/model.bin")
    with pytest.raises(Refused, match=r"out/checkpoint-\*: stands for more than .* --from scratch"):
        checkpoints.choose(1, 2, NUMBERED, None)


def test_what_came_with_the_code_is_no_checkpoint_until_it_is_written_again(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    old = write(work / "out/checkpoint-900/model.bin")
    assert not checkpoints.begin(1, NUMBERED)
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


@pytest.mark.parametrize(
    "layout",
    [
        ("out/global_step*", "out/global_step{}", "latest", "global_step{}"),
        ("out/iter_*", "out/iter_{:07d}", "latest_checkpointed_iteration.txt", "{}\n"),
        ("out/epoch_*/state.pt", "out/epoch_{}/state.pt", "last_checkpoint", "/code/out/epoch_{}/state.pt"),
        ("out/ep*.pt", "out/ep{}.pt", "checkpoint", 'path: "ep{}.pt"\nall: "ep{}.pt"'),
        ("out/step_*", "out/step_{}", "latest", "->step_{}"),
        ("out/step=*.ckpt", "out/step={}.ckpt", "last.ckpt", "->/code/out/step={}.ckpt"),
    ],
)
def test_what_names_the_newest_names_the_one_that_is_chosen(
    work: Path, checkpoints: ProgramCheckpoints, layout: tuple[str, str, str, str]
) -> None:
    """A script that looks there begins where it was asked to, and not from scratch, also after a torn one."""
    pattern, name, pointer, text = layout

    def point(step: int) -> None:
        if text.startswith("->"):
            place.unlink(missing_ok=True)
            place.symlink_to(text[2:].format(step))
        else:
            place.write_text(text.format(step, step))

    def read() -> str:
        return f"->{place.readlink()}" if place.is_symlink() else place.read_text()

    place, wanted = work / "out" / pointer, ProgramFiles(pattern, 2)
    for step in (100, 200, 300):
        path = work / name.format(step)
        write(path if path.suffix else path / "model.pt", archive(b"%d" % step), age_s=1000 - step)
    (work / "out/best").symlink_to(Path(name.format(300)).name)
    point(300)
    for asked, found in ((None, 300), (100, 100), (300, 300)):
        assert checkpoints.choose(1, 2, wanted, asked) is not None
        assert read() == text.format(found, found)
    torn = work / name.format(300)
    write(torn if torn.suffix else torn / "model.pt", archive()[:-9])
    assert checkpoints.choose(1, 3, wanted, None) is not None
    assert read() == text.format(200, 200)
    assert str((work / "out/best").readlink()) == Path(name.format(300)).name  # is the program's own


def test_a_directory_for_each_step_has_its_number(work: Path, tmp_path: Path, saved: Saved) -> None:
    for place, epoch in enumerate((9, 10, 11)):
        write(work / f"out/epoch_{epoch}/state.pt", archive(b"%d" % epoch), age_s=100 - place)
        saved(ProgramFiles("out/*/state.pt", 2))
    found = saved(ProgramFiles("out/*/state.pt", 2))
    assert (found.steps, found.are_steps) == ((11, 10, 9), True)
    assert not list(tmp_path.rglob("version.json"))  # none is written over


def test_of_two_names_of_one_file_that_with_a_number_is_shown(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    """As timm saves: to a temporary name, that is renamed and linked."""
    for epoch in (0, 1, 2):
        (work / "last.pth.tar").unlink(missing_ok=True)
        write(work / "last.pth.tar", archive(b"%d" % epoch), age_s=100 - epoch)
        os.link(work / "last.pth.tar", work / f"checkpoint-{epoch}.pth.tar")
        os.link(work / "last.pth.tar", work / f"{epoch}.link")
        (work / f"{epoch}.link").rename(work / "model_best.pth.tar")
    chosen = checkpoints.choose(1, 2, ProgramFiles("*.pth.tar", 2), None)
    assert chosen == ProgramCheckpoint(2, "checkpoint-2.pth.tar")


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
    with pytest.raises(Unavailable, match="cannot be put back or set aside"):
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
    assert chosen == ProgramCheckpoint(
        1, "state.pt", known_as="version 1", set_aside=("2", "3"), directory="kept/1/set-aside/2"
    )
    assert (work / "state.pt").read_bytes() == versions[1]
    assert (saved(wanted).steps, saved(wanted).set_aside) == ((1,), (3, 2))
    assert checkpoints.choose(1, 3, wanted, None) == ProgramCheckpoint(1, "state.pt", known_as="version 1")
    write(work / "state.pt", archive(b"new"))
    assert saved(wanted).steps == (4, 1)  # no number is given twice
    back = checkpoints.choose(1, 4, wanted, 3)
    assert back == ProgramCheckpoint(
        3, "state.pt", known_as="version 3", set_aside=("4",), directory="kept/1/set-aside/4"
    )
    assert (work / "state.pt").read_bytes() == versions[3]
    assert (tmp_path / "kept/1/set-aside/4/4").is_dir()


# --- without


def test_whole_versions_of_one_path_are_kept_and_numbered(work: Path, tmp_path: Path, saved: Saved) -> None:
    for number in range(1, 5):
        write(work / "state.pt", archive(b"%d" % number), age_s=9 - number)
        assert saved(FIXED).steps[0] == number
    assert saved(FIXED).steps == (4, 3)
    assert sorted(path.name for path in (tmp_path / "kept/1").glob("[0-9]*")) == ["3", "4"]


@pytest.mark.parametrize("torn", [archive(b"2")[:-9], b""])
def test_a_torn_file_is_replaced_by_its_last_whole_version(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved, torn: bytes
) -> None:
    write(work / "state.pt", archive(b"1"), age_s=5)
    assert saved(FIXED).steps == (1,)
    write(work / "state.pt", torn)
    found = saved(FIXED)
    assert (found.steps, len(found.rejected)) == ((1,), 1)
    assert checkpoints.choose(1, 2, FIXED, None) == ProgramCheckpoint(
        1, "state.pt", known_as="version 1", put_back=("state.pt",)
    )
    assert (work / "state.pt").read_bytes() == archive(b"1")
    assert sorted(path.name for path in work.iterdir()) == ["state.pt"]
    assert checkpoints.choose(1, 2, FIXED, None) == ProgramCheckpoint(
        1, "state.pt", known_as="version 1"
    )  # nothing is new


def test_a_directory_without_a_number_is_put_back_with_all_of_its_files(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    wanted = ProgramFiles("out/last", 2)
    write(work / "out/last/model.pt", archive())
    write(work / "out/last/deep/er/rng.pkl", b"\x80\x04}.")
    assert saved(wanted).steps == (1,)
    write(work / "out/last/model.pt", b"PK\x03\x04")
    (work / "out/last/deep/er/rng.pkl").unlink()
    assert checkpoints.choose(1, 2, wanted, None) == ProgramCheckpoint(
        1, "out/last", known_as="version 1", put_back=("out/last",)
    )
    assert (work / "out/last/model.pt").read_bytes() == archive()
    assert (work / "out/last/deep/er/rng.pkl").read_bytes() == b"\x80\x04}."
    assert sorted(path.name for path in (work / "out").iterdir()) == ["last"]


def test_a_removed_file_is_put_back(work: Path, checkpoints: ProgramCheckpoints, saved: Saved) -> None:
    write(work / "out/state.pt", archive())
    wanted = ProgramFiles("out/state.pt", 2)
    assert saved(wanted).steps == (1,)
    (work / "out/state.pt").unlink()
    (work / "out").rmdir()
    assert checkpoints.choose(1, 2, wanted, None) == ProgramCheckpoint(
        1, "out/state.pt", known_as="version 1"
    )
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
    copy = program_checkpoints._copy_to

    def meanwhile(source: int, target: int, check: Callable[[], None]) -> None:
        copy(source, target, check)
        state.write_bytes(archive(b"other"))

    monkeypatch.setattr(program_checkpoints, "_copy_to", meanwhile)
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
    assert checkpoints.choose(1, 2, FIXED, None) == ProgramCheckpoint(
        2, "state.pt", known_as="version 2", put_back=("state.pt",)
    )
    assert (work / "state.pt").read_bytes() == last


def test_a_copy_that_was_written_over_meanwhile_is_made_again(
    work: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_now(work / "state.pt", archive(b"first"))
    copy, copies = program_checkpoints._copy_to, []

    def meanwhile(source: int, target: int, check: Callable[[], None]) -> None:
        copy(source, target, check)
        copies.append(source)
        if len(copies) < 3:
            write_now(work / "state.pt", archive(b"other" * len(copies)))

    monkeypatch.setattr(program_checkpoints, "_copy_to", meanwhile)
    assert checkpoints.saved(1, FIXED, Verification.SIZES).steps == (1,)
    assert len(copies) == 3


def test_a_format_that_does_not_show_its_end_must_be_left_alone_for_a_second(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("state.bin", 2)
    write_now(work / "state.bin", b"half of")
    assert checkpoints.saved(1, wanted, Verification.SIZES).steps == ()
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
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_checkpoints, "LARGE_BYTES", 10)
    for number, steps in ((1, (1,)), (2, (2, 1))):
        write(work / "state.pt", archive(b"%d" % number), age_s=9 - number)
        assert checkpoints.saved(1, FIXED, Verification.SIZES).steps == steps
    assert [path.name for path in (tmp_path / "kept/1").glob("[0-9]*")] == ["1"]
    assert checkpoints.saved(1, FIXED, Verification.CONTENT).steps == (2, 1)
    assert sorted(path.name for path in (tmp_path / "kept/1").glob("[0-9]*")) == ["1", "2"]


def test_a_version_with_a_damaged_note_is_copied_again(work: Path, tmp_path: Path, saved: Saved) -> None:
    write(work / "state.pt", archive())
    assert saved(FIXED).steps == (1,)
    for odd in ("{", "[" * 100_000, '{"path": "x", "directory": 0, "files": [["x", 1e999, 1, 1]]}'):
        (tmp_path / "kept/1/1/version.json").write_text(odd)
        assert saved(FIXED).steps == (1,)
        assert json.loads((tmp_path / "kept/1/1/version.json").read_text())["path"] == "state.pt"


# --- the newest


def first_look(work: Path, names: tuple[str, ...]) -> None:
    """Write checkpoints one after the other; nobody looks before the end."""
    for age, name in enumerate(reversed(names)):
        write(work / name, archive(name.encode()), age_s=100 * age)


ANY: Final = ProgramFiles("*", 2)


@pytest.mark.parametrize("looks", ["one", "each"])
@pytest.mark.parametrize(
    ("names", "step"),
    [
        (("epoch=0-val_loss=0.95.ckpt", "epoch=1-val_loss=0.80.ckpt"), 1),
        (("ckpt_60.pt", "ckpt_1.pt"), None),
        (("ckpt_60.pt", "ckpt_1.pt", "ckpt_2.pt"), 2),
        (("epoch=1-step=200.ckpt", "epoch=2-step=300-v1.ckpt"), 300),
        (("epoch_10.pt", "best_acc_87.pt", "epoch_11.pt"), 11),
        (("epoch_11.pt", "best_acc_87.pt"), None),
        (("epoch=1-step=300.ckpt", "last.ckpt"), None),
        (("last.ckpt", "epoch=1-step=300.ckpt"), 300),
        (("checkpoint_1_20.pt", "checkpoint_1_30.pt", "checkpoint1.pt"), None),
        (("checkpoint_1_30.pt", "checkpoint1.pt", "checkpoint_2_50.pt", "checkpoint_2_60.pt"), 60),
        (("ckpt_50.pt", "ckpt_60.pt", "step_1.pt", "step_2.pt"), 2),
        (("epoch1.pt", "step_40.pt", "step_60.pt", "epoch2.pt"), None),
        (("2026-11-26_14-30.pt", "2026-11-26_09-45.pt"), None),
        (("model-0.95.pt", "model-0.80.pt"), None),
    ],
)
def test_the_newest_is_what_was_complete_last_whatever_its_name(
    work: Path,
    checkpoints: ProgramCheckpoints,
    names: tuple[str, ...],
    step: int | None,
    looks: str,
) -> None:
    if looks == "one":
        first_look(work, names)
    else:
        for age, name in enumerate(names):  # the clock goes backwards meanwhile
            write(work / name, archive(name.encode()), age_s=100 * age)
            assert checkpoints.saved(1, ANY, Verification.SIZES).advanced
    found = checkpoints.saved(1, ANY, Verification.CONTENT)
    assert (found.steps[0] if found.are_steps else None) == step
    chosen = checkpoints.choose(1, 2, ANY, None)
    assert chosen is not None
    assert chosen.path == names[-1]


def test_the_order_outlives_the_daemon(work: Path, tmp_path: Path) -> None:
    for age, name in enumerate(("b.pt", "a.pt")):
        write(work / name, archive(name.encode()), age_s=100 * age)
        program_of(tmp_path).saved(1, ANY, Verification.SIZES)
    chosen = program_of(tmp_path).choose(1, 2, ANY, None)
    assert chosen is not None
    assert chosen.path == "a.pt"


def test_a_file_of_the_future_was_written_before_the_clock_was_set_back(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    write(work / "early.pt", archive(b"1"), age_s=LONG_AGO_S - 4_000_000_000)
    write(work / "late.pt", archive(b"2"))
    chosen = checkpoints.choose(1, 2, ANY, None)
    assert chosen is not None
    assert chosen.path == "late.pt"


def test_a_renamed_checkpoint_is_no_newer_one(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    write(work / "last.pt", archive(b"1"))
    saved(ANY)
    checkpoints.choose(1, 2, ANY, None)
    (work / "last.pt").rename(work / "before.pt")
    assert checkpoints.saved(1, ANY, Verification.CONTENT, 2).advanced is False
    write(work / "last.pt", archive(b"2"), age_s=50)
    assert checkpoints.saved(1, ANY, Verification.CONTENT, 2).advanced is True


def test_a_constant_number_is_no_step_and_its_program_advances(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("out/*.pt", 2)
    for attempt in (1, 2, 3):
        write(work / "out/step_2000_fp16.pt", archive(b"%d" % attempt), age_s=9 - attempt)
        found = checkpoints.saved(1, wanted, Verification.CONTENT, attempt)
        assert found.advanced is True
        checkpoints.choose(1, attempt + 1, wanted, None)
        assert checkpoints.saved(1, wanted, Verification.CONTENT, attempt + 1).advanced is False
    assert checkpoints.saved(1, wanted, Verification.CONTENT).has_versions is True
    fixed = ProgramFiles("out/step_2000_fp16.pt", 2)
    assert checkpoints.saved(1, fixed, Verification.CONTENT).has_versions is True


def test_one_file_that_is_written_over_below_a_dated_directory_has_versions(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("outputs/*/*/checkpoints/last.ckpt", 2)
    for version in (1, 2, 3):
        write(
            work / "outputs/2026-11-27/12-00-05/checkpoints/last.ckpt", archive(b"%d" % version), 9 - version
        )
        found = checkpoints.saved(1, wanted, Verification.CONTENT)
        assert (found.newest, found.are_steps, found.has_versions) == (version, False, True)


def test_a_last_one_beside_steps_has_the_step_before_it_and_no_version(work: Path, saved: Saved) -> None:
    write(work / "out/ckpt-5.pt", archive(b"5"), age_s=20)
    write(work / "out/ckpt-10.pt", archive(b"10"), age_s=10)
    write(work / "out/final.pt", archive(b"f"))
    found = saved(ProgramFiles("out/*.pt", 2))
    assert (found.newest, found.are_steps, found.has_versions) == (10, False, False)


def test_a_lineage_without_checkpoints_has_no_versions(saved: Saved) -> None:
    assert saved(ProgramFiles("out/*.pt", 2)).has_versions is False


def test_numbers_that_begin_again_are_a_newer_checkpoint(work: Path, checkpoints: ProgramCheckpoints) -> None:
    write(work / "out/checkpoint-60/model.pt", archive(b"60"), age_s=9)
    checkpoints.choose(1, 2, NUMBERED, None)
    write(work / "out/checkpoint-1/model.pt", archive(b"1"))
    assert checkpoints.saved(1, NUMBERED, Verification.CONTENT, 2).advanced is True


def test_a_step_is_that_of_the_usual_names_and_no_epoch_between(work: Path, saved: Saved) -> None:
    first_look(
        work / "out", ("checkpoint_1_20", "checkpoint_1_30", "checkpoint1", "checkpoint_2_50", "checkpoint2")
    )
    assert saved(ProgramFiles("out/*", 2)).steps == (50, 30, 20)


@pytest.mark.parametrize(
    ("before", "after", "is_told"),
    [
        ("model_0023.json", "model_0000.json", True),
        ("epoch=4-step=500.ckpt", "epoch=0-step=100.ckpt", True),
        ("model_0023.json", "model_0024.json", False),
        ("model_0023.json", "model_0023.json", False),
        ("step_500.pt", "epoch_4.pt", False),
        ("step_500.pt", "last.pt", False),
        ("last.pt", "last.pt", False),
    ],
)
def test_a_program_that_saves_an_earlier_step_did_not_go_on(
    work: Path, checkpoints: ProgramCheckpoints, before: str, after: str, *, is_told: bool
) -> None:
    write(work / before, b'"a"', age_s=9)
    checkpoints.choose(1, 2, ANY, None)
    assert checkpoints.saved(1, ANY, Verification.CONTENT, 2).went_back == ""
    write(work / after, b'"bc"')
    expected = f"it was given {before}, and has saved {after} after that" if is_told else ""
    assert checkpoints.saved(1, ANY, Verification.CONTENT, 2).went_back == expected


def test_a_program_that_writes_over_its_checkpoints_did_not_go_on_either(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    for step in range(3):
        write(work / f"round_{step}.json", b"%d" % step, age_s=9 - step)
    checkpoints.choose(1, 2, ANY, None)
    for step in range(4):
        write(work / f"round_{step}.json", b'"%d"' % step, age_s=4 - step)
    found = checkpoints.saved(1, ANY, Verification.CONTENT, 2)
    assert found.went_back == "it was given round_2.json, and has saved round_0.json after that"
    assert found.steps[0] == 3


@pytest.mark.parametrize("name", ["prep.done", "stage_2.complete", ".stamp", "_SUCCESS"])
def test_an_empty_mark_of_a_pipeline_is_whole(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved, name: str
) -> None:
    wanted = ProgramFiles(f"state/{name}", 2)
    write(work / "state" / name, b"")
    assert (saved(wanted).rejected, len(saved(wanted).steps)) == ((), 1)
    chosen = checkpoints.choose(1, 2, wanted, None)
    assert chosen is not None
    assert chosen.path == f"state/{name}"


@pytest.mark.parametrize("name", ["last", "model.pt", "abandone", "book"])
def test_another_empty_file_is_torn(work: Path, saved: Saved, name: str) -> None:
    write(work / name, b"")
    assert saved(ProgramFiles(name, 2)).steps == ()


def test_a_torn_last_file_leaves_the_numbered_one_before_it(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("*.ckpt", 2)
    write(work / "epoch=0-step=300.ckpt", archive(b"300"), age_s=3600)
    write(work / "last.ckpt", archive(b"400")[:-9])
    chosen = checkpoints.choose(1, 2, wanted, None)
    assert chosen == ProgramCheckpoint(300, "epoch=0-step=300.ckpt", torn=("last.ckpt",))
    assert sorted(path.name for path in work.iterdir()) == [".last.ckpt.torn", "epoch=0-step=300.ckpt"]


def test_a_last_file_beside_an_old_numbered_one_is_kept_by_a_copy(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved
) -> None:
    wanted = ProgramFiles("*.ckpt", 2)
    write(work / "epoch=0-step=300.ckpt", archive(b"300"), age_s=3600)
    for number in (1, 2, 3):
        write(work / "last.ckpt", archive(b"%d" % number), age_s=9 - number)
        saved(wanted)
    whole = (work / "last.ckpt").read_bytes()
    write(work / "last.ckpt", whole[:-9])
    chosen = checkpoints.choose(1, 2, wanted, None)
    assert chosen is not None
    assert (chosen.path, (work / "last.ckpt").read_bytes()) == ("last.ckpt", whole)


LAST_AND_BEST: Final = ProgramFiles("out/*.pt", 2)


@pytest.mark.parametrize("names", [("last.pt", "best.pt"), ("best.pt", "last.pt")])
@pytest.mark.parametrize("looks", ["one", "each"])
def test_each_torn_file_is_put_back_from_its_own_versions(
    work: Path, checkpoints: ProgramCheckpoints, names: tuple[str, str], looks: str
) -> None:
    first, second = names
    for age, name in enumerate(reversed(names)):
        write(work / "out" / name, archive(name.encode()), age_s=9 * age)
    if looks == "each":
        (work / "out" / second).rename(work / "later")
        checkpoints.saved(1, LAST_AND_BEST, Verification.SIZES)
        (work / "later").rename(work / "out" / second)
    checkpoints.saved(1, LAST_AND_BEST, Verification.SIZES)
    write_now(work / "out" / first, archive(b"torn")[:-9])
    chosen = checkpoints.choose(1, 2, LAST_AND_BEST, None)
    assert chosen == ProgramCheckpoint(2, f"out/{second}", known_as="version 2", put_back=(f"out/{first}",))
    assert (work / "out" / first).read_bytes() == archive(first.encode())
    assert sorted(path.name for path in (work / "out").iterdir()) == ["best.pt", "last.pt"]


def test_a_file_that_is_seldom_written_keeps_its_version(work: Path, checkpoints: ProgramCheckpoints) -> None:
    write(work / "out/best.pt", archive(b"best"), age_s=99)
    for number in range(5):
        write(work / "out/last.pt", archive(b"%d" % number), age_s=9 - number)
        checkpoints.saved(1, LAST_AND_BEST, Verification.SIZES)
    write_now(work / "out/best.pt", b"")
    chosen = checkpoints.choose(1, 2, LAST_AND_BEST, None)
    assert chosen is not None
    assert (chosen.path, chosen.put_back) == ("out/last.pt", ("out/best.pt",))
    assert (work / "out/best.pt").read_bytes() == archive(b"best")


def test_a_torn_file_is_not_put_back_from_later_than_the_step_that_is_asked_for(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("out/*.pt", 3)
    for number, name in enumerate(("last", "best", "last")):
        write(work / f"out/{name}.pt", archive(b"%d" % number), age_s=9 - number)
        checkpoints.saved(1, wanted, Verification.SIZES)
    write_now(work / "out/last.pt", b"")
    chosen = checkpoints.choose(1, 2, wanted, 2)
    assert chosen is not None
    assert (chosen.path, chosen.put_back, chosen.set_aside) == ("out/best.pt", ("out/last.pt",), ("3",))
    assert (work / "out/last.pt").read_bytes() == archive(b"0")


@pytest.mark.parametrize(("name", "doubted"), [("checkpoint-1/model.pt", [True]), ("checkpoint-1", [False])])
def test_only_the_first_directory_has_none_that_shows_what_it_lacks(
    work: Path, checkpoints: ProgramCheckpoints, saved: Saved, name: str, doubted: list[bool]
) -> None:
    write(work / "out" / name, archive(b"1"), age_s=9)
    assert saved(NUMBERED).only_first is False  # the first attempt did not begin with it
    checkpoints.choose(1, 2, NUMBERED, None)
    assert [checkpoints.saved(1, NUMBERED, Verification.CONTENT, 2).only_first] == doubted
    write(work / "out/checkpoint-2/model.pt", archive(b"2"))
    assert checkpoints.saved(1, NUMBERED, Verification.CONTENT, 2).only_first is False


def test_files_that_are_never_written_over_have_few_versions(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints
) -> None:
    for number, name in enumerate("abcdef"):
        write(work / f"out/{name}.pt", archive(name.encode()), age_s=9 - number)
        checkpoints.saved(1, LAST_AND_BEST, Verification.SIZES)
    assert sorted(path.name for path in (tmp_path / "kept/1").glob("[0-9]*")) == ["5", "6"]


# --- patterns


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{last,best}.ckpt", ("best.ckpt", "last.ckpt")),
        ("{out,runs/x}/step-*.{pt,ckpt}", ("out/step-1.pt", "runs/x/step-2.ckpt")),
        (
            "outputs/*/*/last.ckpt",
            ("outputs/2026-11-25/09-00-00/last.ckpt", "outputs/2026-11-26/08-00-00/last.ckpt"),
        ),
    ],
)
def test_one_pattern_names_several_places_in_one_stream(
    work: Path, checkpoints: ProgramCheckpoints, pattern: str, names: tuple[str, ...]
) -> None:
    first_look(work, names)
    chosen = checkpoints.choose(1, 2, ProgramFiles(pattern, 2), None)
    assert chosen is not None
    assert chosen.path == names[-1]


@pytest.mark.parametrize(
    ("pattern", "fact"),
    [
        ("out/*.ckpt", "there is no *.ckpt in out, which has model-1.pt"),
        ("ckpts/*.pt", "there is no ckpts in the working directory, which has out"),
        ("out/*/last.pt", "there is no last.pt in out/*, which has weights.pt"),
    ],
)
def test_a_pattern_that_has_never_matched_is_told_with_what_is_there(
    work: Path, saved: Saved, pattern: str, fact: str
) -> None:
    write(work / "out/model-1.pt")
    if pattern.endswith("last.pt"):
        write(work / "out/run/weights.pt")
    assert saved(ProgramFiles(pattern, 2)).missed == fact


def test_a_pattern_that_has_matched_once_is_not_told(work: Path, saved: Saved) -> None:
    write(work / "state.pt", archive()).unlink()
    assert saved(FIXED).missed
    write(work / "state.pt", archive())
    assert saved(FIXED).missed == ""
    (work / "state.pt").unlink()
    assert saved(FIXED).missed == ""


def test_checkpoints_below_a_mount_are_chosen_and_set_aside_there(
    tmp_path: Path, checkpoints: ProgramCheckpoints
) -> None:
    mount = tmp_path / "scratch"
    for step in (1, 2):
        write(mount / f"out/step-{step}.pt", archive(b"%d" % step), age_s=9 - step)
    wanted = ProgramFiles("out/step-*.pt", 2, str(mount))
    chosen = checkpoints.choose(1, 2, wanted, 1)
    place = f".runner-set-aside/{tmp_path.name}/1/2"
    assert chosen == ProgramCheckpoint(1, "out/step-1.pt", set_aside=("out/step-2.pt",), directory=place)
    assert (mount / place / "out/step-2.pt").is_file()
    again = checkpoints.choose(1, 3, wanted, 2)
    assert again is not None
    assert again.path == "out/step-2.pt"


@pytest.mark.parametrize(
    "error", [Unavailable("no answer from the file systems"), UsageError("permission denied")]
)
def test_a_mount_that_cannot_be_read_is_not_a_mount_without_checkpoints(
    tmp_path: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch, error: RunnerError
) -> None:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(type(checkpoints.verifier.work), "open_as_owner", fail)
    wanted = ProgramFiles("out/step-*.pt", 2, str(tmp_path / "scratch"))
    seen = checkpoints.saved(1, wanted, Verification.CONTENT)
    assert (seen.complete, seen.unverified) == (False, (f"checkpoints: {error}",))
    for work in (lambda: checkpoints.choose(1, 2, wanted, None), lambda: checkpoints.begin(1, wanted)):
        with pytest.raises(type(error), match=str(error)):
            work()


# --- whole


@pytest.mark.parametrize("mark", ["_SUCCESS", ".complete", "__init__.py", "merges.txt", "events.log"])
def test_an_empty_mark_tears_no_checkpoint(work: Path, saved: Saved, mark: str) -> None:
    write(work / "out/checkpoint-1/model.pt", archive())
    write(work / f"out/checkpoint-1/{mark}", b"")
    assert saved(NUMBERED).steps == (1,)


@pytest.mark.parametrize("name", ["model.pt", "a.npz", "a.npy", "model.h5", "a.distcp", "config.json"])
def test_an_empty_file_of_a_format_that_is_never_empty_does(work: Path, saved: Saved, name: str) -> None:
    write(work / "out/checkpoint-1/other.txt")
    write(work / f"out/checkpoint-1/{name}", b"")
    assert saved(NUMBERED).rejected == (f"out/checkpoint-1: {name} is empty",)


def test_nothing_but_marks_is_no_checkpoint(work: Path, saved: Saved) -> None:
    write(work / "out/checkpoint-1/_SUCCESS", b"")
    assert saved(NUMBERED).rejected == ("out/checkpoint-1: is empty",)


# --- hostile


def test_a_sparse_file_is_copied_with_its_holes(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints
) -> None:
    state = write(work / "state.bin")
    os.truncate(state, 8 * 1024**4)
    os.utime(state, (LONG_AGO_S, LONG_AGO_S))
    wanted = ProgramFiles("state.bin", 2)
    assert checkpoints.saved(1, wanted, Verification.CONTENT).steps == (1,)
    copy = (tmp_path / "kept/1/1/files/state.bin").stat()
    assert copy.st_size == 8 * 1024**4
    assert copy.st_blocks * 512 < 1024**2
    state.unlink()
    assert checkpoints.choose(1, 2, wanted, None) is not None
    assert (work / "state.bin").stat().st_blocks * 512 < 1024**2


def test_a_copy_is_broken_off_when_the_daemon_leaves(work: Path, tmp_path: Path) -> None:
    verifier = CheckpointVerifier()
    verifier.close()
    write(work / "state.pt", archive())
    with pytest.raises(Unavailable, match="stopping"):
        program_of(tmp_path, verifier).saved(1, FIXED, Verification.CONTENT)


def nest(parent: Path, depth: int) -> None:
    """Make directories below each other, however long their path is."""
    parent.mkdir(parents=True)
    fd = os.open(parent, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_thousands_of_directories_below_each_other_are_one_torn_checkpoint(
    work: Path, checkpoints: ProgramCheckpoints
) -> None:
    write(work / "out/checkpoint-1/model.pt", archive(), age_s=9)
    nest(work / "out/checkpoint-2", 1200)
    write(work / "out/checkpoint-2/model.pt", archive())
    found = checkpoints.saved(1, NUMBERED, Verification.CONTENT)
    assert found.steps == (1,)
    assert found.rejected == ("out/checkpoint-2: has directories deeper than 32 levels",)
    chosen = checkpoints.choose(1, 2, NUMBERED, None)
    first = ProgramCheckpoint(1, "out/checkpoint-1", torn=("out/checkpoint-2",))
    assert chosen == first
    (work / "out/.checkpoint-2.torn").rename(work / "out/checkpoint-2")
    nest(work / "out/.checkpoint-2.torn", 1200)
    assert checkpoints.choose(1, 3, NUMBERED, None) == first
    with program_files.directory_at(work, PurePosixPath("out")) as fd:
        remove(fd, ".checkpoint-2.torn")  # too deep for what tidies up after tests


def test_removing_ends_with_what_cannot_be_removed(tmp_path: Path) -> None:
    nest(tmp_path / "deep", 1200)
    (tmp_path / "deep/link").symlink_to(tmp_path)
    (tmp_path / "other").write_text("stays")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for name in ("deep", "missing"):
            remove(fd, name)
    finally:
        os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_braces_that_stand_for_too_many_patterns_end_a_look(work: Path, saved: Saved) -> None:
    write(work / "aaaaaaa")
    assert saved(ProgramFiles("{a,b}" * 7, 2)).complete is False


def test_a_name_that_is_not_utf_8_is_no_checkpoint(work: Path, saved: Saved) -> None:
    (work / "out").mkdir()
    Path(os.fsdecode(bytes(work / "out") + b"/checkpoint-\xff1")).write_bytes(archive())
    assert saved(NUMBERED).steps == ()


# --- what frameworks of the field leave beside their checkpoints


@pytest.mark.parametrize(
    ("whole", "draft"),
    [
        ("out/step10.ckpt", "out/step20.ckpt.tmp"),
        ("out/1000/state", "out/2000.orbax-checkpoint-tmp-17/state"),
        ("out/checkpoint-10/state", "out/tmp-checkpoint-20/state"),
        ("out/1.npz", "out/2.npz.part"),
        ("out/1.npz", "out/2.npz~"),
        ("out/global_step100/state", "out/latest"),
        ("out/global_step100/state", "out/zero_to_fp32.py"),
        ("out/global_step100/state", "out/events.out.tfevents.1700000000.host.1.0"),
        ("out/model_9.json", "out/train.log"),
        ("out/iter_100/state", "out/latest_checkpointed_iteration.txt"),
        ("out/model_100.pth", "out/last_checkpoint"),
        ("out/ckpt.pt", "out/ckpt.pt.new"),
        ("out/ckpt.pt", "out/tmpab12_d9z"),
        ("out/ckpt.pt", "out/temp_ckpt.pt"),
        ("out/ckpt.pt", "out/ckpt_temp.pt"),
        ("out/ckpt_0.7_temp_0.5.pt", "out/log.txt"),
        ("out/checkpoint-20/state", "out/runs/Nov27/events.out.tfevents.1"),
        ("out/checkpoint-20/state", "out/metrics.jsonl"),
        ("out/checkpoint-20/state", "out/all_results.json"),
    ],
)
def test_a_name_that_is_given_up_and_a_text_that_names_the_newest_are_no_checkpoints(
    work: Path, saved: Saved, checkpoints: ProgramCheckpoints, whole: str, draft: str
) -> None:
    write(work / whole, archive(), age_s=100)
    write(work / draft, b"global_step100\n")
    wanted = ProgramFiles("out/*", 2)
    assert (len(saved(wanted).steps), saved(wanted).rejected) == (1, ())
    chosen = checkpoints.choose(1, 2, wanted, None)
    assert chosen is not None
    assert whole.startswith(chosen.path)


def test_a_log_that_was_there_before_the_first_checkpoint_is_never_put_back(
    work: Path, tmp_path: Path, saved: Saved, checkpoints: ProgramCheckpoints
) -> None:
    wanted = ProgramFiles("out/*", 2)
    write(work / "out/train.log", b"step 1\n", age_s=300)
    saved(wanted)
    assert (tmp_path / "kept/1/1/files/train.log").exists()
    write(work / "out/train.log", b"step 1\nstep 2\n", age_s=200)
    write(work / "out/model_5.pt", archive(), age_s=100)
    assert saved(wanted).steps == (5,)
    write(work / "out/model_5.pt", archive()[:-20])
    assert (saved(wanted).steps, len(saved(wanted).rejected)) == ((), 1)
    assert checkpoints.choose(1, 2, wanted, None) is None
    assert (work / "out/train.log").read_bytes() == b"step 1\nstep 2\n"


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("out/*.tmp", "state.tmp"), ("out/*", "latest"), ("out/*.csv", "state.csv"), ("out/*", "state.yaml")],
)
def test_a_pattern_may_ask_for_a_temporary_name_and_a_checkpoint_may_be_called_latest(
    work: Path, saved: Saved, pattern: str, name: str
) -> None:
    write(work / "out" / name, archive())
    assert len(saved(ProgramFiles(pattern, 2)).steps) == 1


@pytest.mark.parametrize(("pattern", "name"), [("out/latest", "latest"), ("out/*", "last")])
def test_a_program_may_keep_its_state_in_a_text_that_is_called_latest(
    work: Path, saved: Saved, pattern: str, name: str
) -> None:
    write(work / "out" / name, b"17\n")
    assert len(saved(ProgramFiles(pattern, 2)).steps) == 1


def test_a_link_to_a_directory_of_a_pattern_is_told(work: Path, saved: Saved) -> None:
    write(work / "runs/1/last.ckpt", archive())
    (work / "latest").symlink_to("runs/1")
    told = saved(ProgramFiles("latest/*.ckpt", 2)).missed
    assert told == "latest is a link, which is not followed; name what it leads to"
    assert (
        saved(ProgramFiles("runs/1/last.ckpt/*", 2)).missed == "runs/1/last.ckpt is a file, and no directory"
    )


def test_a_link_that_a_pattern_names_is_told(work: Path, saved: Saved) -> None:
    write(work / "out/epoch=1.ckpt", archive())
    (work / "out/last.ckpt").symlink_to("epoch=1.ckpt")
    told = saved(ProgramFiles("out/last.ckpt", 2)).missed
    assert told == "out/last.ckpt is a link, which is not followed; name what it leads to"


def packed() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as target:
        entry = tarfile.TarInfo("weights.pt")
        entry.size = 5000
        target.addfile(entry, io.BytesIO(bytes([7]) * 5000))
    return file.getvalue()


HDF5 = b"\x89HDF\r\n\x1a\n" + b"\0" * 32
NPY = b"\x93NUMPY\x01\0\x76\0{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }".ljust(127) + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "fact"),
    [
        ("m.joblib", pickle.dumps([1, 2]), None),
        ("m.joblib", pickle.dumps([1, 2])[:-1], "ends in the middle of its pickle"),
        ("m.pkl", gzip.compress(pickle.dumps([1]), mtime=0), None),
        ("s.rds", gzip.compress(b"X" * 5_000_000, mtime=0), None),
        ("s.rds", gzip.compress(b"X" * 5_000_000, mtime=0)[:-6], "ends in the middle of what is compressed"),
        (
            "s.RData",
            gzip.compress(b"X", mtime=0)[:12] + b"\xff" * 9,
            "ends in the middle of what is compressed",
        ),
        ("s.rds", lzma.compress(b"X"), None),
        ("s.rds", lzma.compress(b"X")[:-1], "has no mark of its end"),
        ("m.pt", bytes(5000), "begins with zeros"),
        ("m.h5", bytes(5000), "begins with zeros"),
        ("weights.bin", bytes(5000), None),
        ("agent.th", pickle.dumps([1] * 99), None),
        ("agent.th", pickle.dumps([1] * 99)[:-9], "ends in the middle of its pickle"),
        ("state", pickle.dumps({"w": bytes(99_999)}), None),
        ("state", pickle.dumps({"w": bytes(99_999)})[:-9], "ends in the middle of its pickle"),
        ("m.pt", pickle.dumps([1] * 99) + b"weights", None),
        ("m.parquet", b"PAR1" + bytes(99) + b"PAR1", None),
        ("m.parquet", b"PAR1" + bytes(99), "has no mark of its end"),
        ("m.nemo", packed(), None),
        ("m.nemo", packed()[:-9000], "has no mark of its end"),
        ("m.pth.tar", archive(), None),
        ("m.pkl", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02K\x01.raw weights", None),
        ("log.json", b'{"step": 1}\n{"step": 2}\n', None),
        ("log.json", b'{"step": 1}\n{"st', "is no complete JSON"),
        ("c.json", b'{"a": 1, // of DeepSpeed\n "b": 2}\n', None),
        ("c.json", b'{\n  "a": {"b": 1}', "is no complete JSON"),
        ("c.json", b'{"a": "b' + b"\0" * 20, "is no complete JSON"),
        ("c.json", '{"name": "Müller"}'.encode("latin-1"), None),
        ("c.json", '{"name": "Müller'.encode("latin-1"), "is no complete JSON"),
        ("c.json", '{"name": "Mü'.encode()[:-1], "is no complete JSON"),
        ("m.h5", bytes(1024) + HDF5, None),
        ("m.h5", HDF5 + (5000).to_bytes(8, "little") + b"\0" * 52, "has 100 bytes of 5000"),
        ("m.h5", HDF5 + (100).to_bytes(8, "little") + b"\0" * 52, None),
        ("m.h5", HDF5[:8], None),
        ("m.h5", HDF5 + b"\xff" * 8, None),
        ("s.npy", NPY + bytes(48), None),
        ("s.npy", NPY + bytes(40), "has 168 bytes of 176"),
    ],
)
def test_formats_of_the_field_show_that_they_are_broken_off(
    work: Path, saved: Saved, name: str, content: bytes, fact: str | None
) -> None:
    write(work / name, content)
    assert saved(ProgramFiles(name, 2)).rejected == (() if fact is None else (f"{name}: {fact}",))


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ({"__0_0.distcp": b"x", ".metadata": b"x"}, None),
        ({"model/__0_0.distcp": b"x"}, "model/.metadata"),
        ({"w.safetensors.index.json": b'{"weight_map": {"a": "w-1.bin"}}', "w-1.bin": b"x"}, None),
        ({"w.safetensors.index.json": b'{"weight_map": {"a": "w-1.bin"}}'}, "w-1.bin"),
        ({"other.index.json": b"[]"}, None),
        ({"m-00001-of-00002.bin": b"x", "m-00002-of-00002.bin": b"x"}, None),
        (
            {"m-00001-of-00003.bin": b"x", "m-00003-of-00003.bin": b"x"},
            "some of the 3 parts of m-00001-of-00003.bin",
        ),
    ],
)
def test_a_first_checkpoint_in_parts_lacks_none_that_its_index_names(
    work: Path, saved: Saved, files: dict[str, bytes], lacking: str | None
) -> None:
    for name, content in files.items():
        write(work / "out/checkpoint-7" / name, content)
    told = () if lacking is None else (f"out/checkpoint-7: lacks {lacking}",)
    assert saved(NUMBERED).rejected == told


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["ckpt_20240101_120000.pt"], None),
        (["ckpt_20240101_120000.pt", "ckpt_20240101_130000.pt"], None),
        (["2024-01-01T12-00-00.pt", "2024-01-01T13-00-00.pt"], None),
        (["ckpt-1732600000.pt", "ckpt-1732600100.pt"], None),
        (["2024-01-01_step_5.pt", "2024-01-01_step_6.pt"], (6, 5)),
        (["model-00001-of-00002.bin", "model-00002-of-00002.bin"], None),
        (["ckpt-1732600000123.pt", "ckpt-1732600100123.pt"], None),
        (["ckpt-1732600000.25.pt", "ckpt-1732600100.75.pt"], None),
        (["2024-01-01 12:00:00.123456.pt", "2024-01-02 12:00:00.123457.pt"], None),
        (["ckpt_260101_120000.pt", "ckpt_260102_120000.pt"], None),
        (["Jan01_12-00-00_host.pt", "Jan02_12-00-00_host.pt"], None),
        (["step_0x10.pt", "step_0x11.pt"], None),
        (["resnet50.pt"], None),
        (["gpt2_ckpt.pt"], None),
        (["myepoch3.pt"], (3,)),
        (["ckpt_e3b7f2.pt", "ckpt_9f8c11.pt"], None),
        (["run-20261127_180000-abc123", "run-20261127_190000-x9z8y7"], None),
        (["model_27-11-2026.pt", "model_28-11-2026.pt"], None),
        (["step_1e3.pt", "step_2e3.pt"], None),
        (["step=1,000.pt", "step=2,000.pt"], None),
        (["worker0.pt", "worker1.pt"], None),
        (["trial_3_epoch_5.pt", "trial_4_epoch_1.pt"], None),
        (["phase1_step_200.pt", "phase2_step_50.pt"], None),
        (["ep1_it100.pt", "ep1_it200.pt", "ep2_it100.pt"], None),
        (["ep1_it100.pt", "ep2_it100.pt"], (2, 1)),
        (["ep1it100.pt", "ep1it200.pt"], (200, 100)),
        (["netG_epoch_1.pt", "netD_epoch_1.pt", "netG_epoch_2.pt", "netD_epoch_2.pt"], (2, 1)),
        (["ckpt-5.data-00000-of-00001", "ckpt-5.index"], (5,)),
    ],
)
def test_a_date_a_shard_and_the_name_of_a_model_are_no_steps(
    work: Path, saved: Saved, names: list[str], steps: tuple[int, ...] | None
) -> None:
    for place, name in enumerate(names):
        write(work / "c" / name, age_s=1000 - place)
    found = saved(ProgramFiles("c/*", 2))
    assert (found.steps if found.are_steps else None) == steps


# --- given to the first attempt of another lineage


@pytest.mark.parametrize(
    ("wanted", "place", "file"),
    [
        (NUMBERED, "work/1", "out/checkpoint-70/model.bin"),
        (ProgramFiles("out/ckpt_*.pt", 2), "work/1", "out/ckpt_70.pt"),
        (ProgramFiles("/job/home/ckpt_*.pt", 2), "homes/1", "ckpt_70.pt"),
        (FIXED, "work/1", "state.pt"),
    ],
)
def test_the_first_attempt_of_another_lineage_begins_with_what_it_was_given(
    wanted: ProgramFiles, place: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / "lineages/1").mkdir(parents=True)
    write(tmp_path / place / file, archive())
    own, other = HostRunDirectory(tmp_path, ME), HostRunDirectory(tmp_path / "other", ME)
    other.create()
    other.seed(1, lambda draft: own.copy_program_checkpoint(own.paths(1, 1), wanted, draft))
    copy = tmp_path / "other" / place / file
    write(copy, b"came with the code")
    chosen = other.choose_program_checkpoint(other.paths(1, 1), wanted, None, is_first=True)
    assert chosen is not None
    assert file.startswith(chosen.path)
    assert copy.read_bytes() == (tmp_path / place / file).read_bytes() == archive()


def test_what_is_written_over_or_removed_while_it_is_given_is_given_as_the_next_one(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(work / "out/checkpoint-1/model.bin", archive())
    copy, copies = program_checkpoints._copy_to, []

    def meanwhile(source: int, target: int, check: Callable[[], None]) -> None:
        copy(source, target, check)
        copies.append(source)
        if first.exists():
            remove_tree(first.parent)
            write(work / "out/checkpoint-2/model.bin", archive(b"next"))

    monkeypatch.setattr(program_checkpoints, "_copy_to", meanwhile)
    given = tmp_path / "given"
    given.mkdir()
    checkpoints.give_newest(1, NUMBERED, given, lambda: None)
    assert [path.name for path in (given / "set-aside/0/out").iterdir()] == ["checkpoint-2"]
    assert len(copies) == 2


def test_what_is_never_the_same_is_not_given(
    work: Path, tmp_path: Path, checkpoints: ProgramCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = write(work / "out/checkpoint-1/model.bin", archive())
    copy = program_checkpoints._copy_to

    def meanwhile(source: int, target: int, check: Callable[[], None]) -> None:
        copy(source, target, check)
        state.write_bytes(archive(b"other"))

    monkeypatch.setattr(program_checkpoints, "_copy_to", meanwhile)
    given = tmp_path / "given"
    given.mkdir()
    with pytest.raises(CheckpointInvalid, match="writes over it or removes it meanwhile"):
        checkpoints.give_newest(1, NUMBERED, given, lambda: None)
    assert not list((given / "set-aside/0/out").iterdir())
    remove_tree(state.parent)
    with pytest.raises(CheckpointInvalid, match="writes over it or removes it meanwhile"):
        checkpoints.give_newest(1, NUMBERED, given, lambda: None)
