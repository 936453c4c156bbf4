"""Motions that the reader takes, and the place in its message about a wrong one."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from jobs.contract.plans.base import Clean
from jobs.data.motion import Motion, MotionFiles, survey
from jobs.data.sequences import Recording
from jobs.data.skeleton import from_axis_angles
from jobs.training.failures import InvalidSpec
from tests.fakes.workloads.motions import (
    BROKEN,
    Contents,
    amass_file,
    fine_tuning_file,
    sequences,
    totalcapture_file,
    without,
    write_amass,
    write_totalcapture,
)

ALL = ("*.pt",)


def said(place: Path, patterns: tuple[str, ...] = ALL, sites: int = 5) -> str:
    with pytest.raises(InvalidSpec) as caught:
        survey(place, patterns, sites)
    return str(caught.value)


def read(place: Path, number: int = 0) -> Motion:
    return MotionFiles().read(survey(place, ALL, 5).train[number])


def test_a_folder_of_archives_has_a_group_for_each_archive(tmp_path: Path) -> None:
    found = survey(write_amass(tmp_path / "it's; echo"), ALL, 6)
    assert [each.group for each in found.train] == ["ACCAD.pt"] * 3 + ["BMLmovi.pt"] * 3 + ["CMU.pt"] * 3
    assert found.test == ()
    assert [each.samples for each in found.train[:3]] == [60, 67, 74]


def test_sets_for_fine_tuning_are_read_where_the_folder_is_named(tmp_path: Path) -> None:
    folder = write_amass(tmp_path) / "eval"
    torch.save(sequences(3, 1), folder / "dip_test.pt")
    torch.save(sequences(4, 1), folder / "totalcapture_test.pt")
    found = survey(folder, ("dip_*.pt",), 5)
    assert {each.path.name for each in found.train} == {"dip_train.pt"}
    assert {each.path.name for each in found.test} == {"dip_test.pt"}
    whole = survey(tmp_path, ALL, 5)
    assert {each.path.name for each in whole.train} == {"ACCAD.pt", "BMLmovi.pt", "CMU.pt"}
    assert {each.path.name for each in whole.test} == {"dip_test.pt", "totalcapture_test.pt"}


@pytest.mark.parametrize("name", ["totalcapture.pt", "TotalCapture.pt", "totalcapture25.pt", "dip_Test.pt"])
def test_a_test_set_is_never_trained_on_by_its_real_name_wherever_it_lies(tmp_path: Path, name: str) -> None:
    folder = write_amass(tmp_path) / "eval"
    for place in (folder, tmp_path):
        torch.save(sequences(3, 1), place / name)
        found = survey(place, ALL, 5)
        assert name in {each.path.name for each in found.test}
        assert name not in {each.path.name for each in found.train}


def test_contacts_of_heels_and_toes_are_those_of_the_feet(tmp_path: Path) -> None:
    contents = {key: list(value) for key, value in sequences(3, 1).items()}
    frames = len(contents["acc"][0])
    contents["contact"] = [torch.zeros(frames, 4)]
    contents["contact"][0][0, 1] = contents["contact"][0][1, 2] = 1.0
    torch.save(contents, tmp_path / "a.pt")
    found = read(tmp_path / "a.pt").contact_N2
    assert found is not None
    assert found[:3].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_numbers_that_are_none_are_cleaned_as_asked_counted_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = sequences(3, 1)
    contents = {key: [each.clone() for each in value] for key, value in whole.items()}
    contents["ori"][0][0, 1] = contents["ori"][0][5, 0] = torch.nan
    contents["acc"][0][7, 2, 0] = -torch.inf
    torch.save(contents, tmp_path / "a.pt")
    assert "-inf; repair it, cut it out, or set clean" in said(tmp_path / "a.pt").replace("nan", "-inf")
    clean = Clean(nan=None, inf=0)
    found = survey(tmp_path / "a.pt", ALL, 5, clean)
    told = capfd.readouterr().out
    assert "clean: NaN: None, infinite: 0.0: 1 numbers were replaced, and 18 count as missing" in told
    motion, before = MotionFiles(clean=clean).read(found.train[0]), whole["ori"][0]
    assert torch.equal(motion.orientation_NS33[5, 0], before[4, 0])
    assert torch.equal(motion.orientation_NS33[0, 1], before[1, 1])
    assert motion.acceleration_NS3[7, 2, 0] == 0
    assert survey(tmp_path / "a.pt", ALL, 5, Clean(nan=None, inf=None)).sha256 != found.sha256


def test_what_is_missing_in_every_frame_is_refused(tmp_path: Path) -> None:
    contents = {key: [each.clone() for each in value] for key, value in sequences(3, 1).items()}
    contents["acc"][0][:, 0] = torch.nan
    torch.save(contents, tmp_path / "a.pt")
    with pytest.raises(InvalidSpec, match=r"frame 0, at .*: nan; repair it"):
        survey(tmp_path / "a.pt", ALL, 5, Clean(nan=None))


def test_a_folder_of_subjects_has_a_group_for_each_subject(tmp_path: Path) -> None:
    found = survey(write_totalcapture(tmp_path), ALL, 5)
    assert [each.group for each in found.train] == ["s1", "s1", "s2", "s2", "s3", "s3"]
    motion = MotionFiles().read(found.train[0])
    assert motion.joints_NJ3 is None
    assert motion.contact_N2 is None


def test_the_sequences_of_a_single_file_are_groups_of_their_own(tmp_path: Path) -> None:
    torch.save(sequences(0, 3), tmp_path / "all.pt")
    for place in (tmp_path, tmp_path / "all.pt"):
        assert [each.group for each in survey(place, ALL, 5).train] == ["0", "1", "2"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    contents = sequences(0, 2)
    torch.save(contents, tmp_path / "a.pt")
    motion = read(tmp_path, 1)
    assert motion.acceleration_NS3.equal(contents["acc"][1])
    assert motion.orientation_NS33.equal(contents["ori"][1])
    assert motion.pose_NJ33.equal(contents["pose"][1])
    assert motion.translation_N3.equal(contents["tran"][1])
    assert motion.joints_NJ3 is not None
    assert motion.joints_NJ3.equal(contents["joint"][1])
    assert motion.contact_N2 is not None
    assert motion.contact_N2.equal(contents["contact"][1])


def test_tensors_in_place_of_lists_are_the_only_sequence_of_a_file(tmp_path: Path) -> None:
    contents = sequences(0, 1)
    torch.save({key: value[0] for key, value in contents.items()}, tmp_path / "a.pt")
    assert read(tmp_path).pose_NJ33.equal(contents["pose"][0])


def test_a_file_of_the_old_format_that_cannot_be_mapped_is_read(tmp_path: Path) -> None:
    contents = sequences(0, 1)
    torch.save(contents, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert read(tmp_path).pose_NJ33.equal(contents["pose"][0])


@pytest.mark.parametrize("shape", [(-1, 24, 3), (-1, 72)])
def test_poses_may_be_axes_and_angles(tmp_path: Path, shape: tuple[int, ...]) -> None:
    turns = torch.randn(60, 24, 3, generator=torch.Generator().manual_seed(0))
    torch.save({**sequences(0, 1), "pose": [turns.reshape(shape)]}, tmp_path / "a.pt")
    assert torch.allclose(read(tmp_path).pose_NJ33, from_axis_angles(turns))


def test_poses_may_be_flat_matrices(tmp_path: Path) -> None:
    contents = sequences(0, 1)
    torch.save({**contents, "pose": [contents["pose"][0].reshape(-1, 216)]}, tmp_path / "a.pt")
    assert read(tmp_path).pose_NJ33.equal(contents["pose"][0])


def test_orientations_may_be_quaternions(tmp_path: Path) -> None:
    half = torch.full((60, 6), 0.3)
    quaternions = torch.stack([half.cos(), half.sin(), 0 * half, 0 * half], -1)
    torch.save({**sequences(0, 1), "ori": [quaternions]}, tmp_path / "a.pt")
    about_x = from_axis_angles(torch.tensor([0.6, 0.0, 0.0])).expand(60, 6, 3, 3)
    assert torch.allclose(read(tmp_path).orientation_NS33, about_x, atol=1e-6)


def test_other_types_of_real_numbers_are_read(tmp_path: Path) -> None:
    contents = sequences(0, 1)
    torch.save({**contents, "acc": [contents["acc"][0].double()]}, tmp_path / "a.pt")
    assert read(tmp_path).acceleration_NS3.equal(contents["acc"][0])
    torch.save({**contents, "acc": [contents["acc"][0].to(torch.complex64)]}, tmp_path / "a.pt")
    assert said(tmp_path).endswith("['acc'][0]: type torch.complex64; it must hold real numbers")
    torch.save({**contents, "acc": [contents["acc"][0].to_sparse()]}, tmp_path / "a.pt")
    assert said(tmp_path).endswith("['acc'][0]: type torch.sparse_coo; it must hold real numbers")


@pytest.mark.parametrize("layout", [amass_file, fine_tuning_file, totalcapture_file])
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_refused_at_its_place(
    tmp_path: Path, how: str, layout: Callable[[Path], tuple[Path, Contents]]
) -> None:
    make, fact = BROKEN[how]
    path, contents = layout(tmp_path)
    others = ", 'joint', 'contact', 'shape'" if "joint" in contents else ""
    torch.save(make(contents), path)
    separator = "" if fact.startswith("[") else ": "
    place = path.parent if layout is fine_tuning_file else tmp_path
    assert said(place) == f"data: {path}{separator}{fact.format(path=path, others=others)}"


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "CMU.pt"
    torch.save(sequences(0, 1), path)
    path.write_bytes(path.read_bytes()[:-2000])
    assert said(tmp_path).startswith(f"data: {path}: cannot be read as .pt: ")
    assert said(tmp_path).endswith("; is it cut off, or does it hold more than tensors?")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_of_the_old_format_with_a_flipped_bit_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "CMU.pt"
    torch.save(sequences(0, 1), path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for place in range(0, 600, 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with suppress(InvalidSpec):
            survey(tmp_path, ALL, 5)


def test_objects_in_a_file_are_not_loaded(tmp_path: Path) -> None:
    torch.save({"acc": Path("x")}, tmp_path / "CMU.pt")
    assert said(tmp_path).startswith(f"data: {tmp_path / 'CMU.pt'}: cannot be read as .pt: ")


def test_a_directory_without_files_to_train_on_is_refused(tmp_path: Path) -> None:
    end = (
        ": no sequence to train on in a file that matches *.pt; *_test.pt, totalcapture.pt and the other"
        " files of eval/ do not count; is it the right directory?"
    )
    assert said(tmp_path) == f"data: {tmp_path}{end}"
    torch.save(sequences(0, 1), tmp_path / "dip_test.pt")
    assert said(tmp_path) == f"data: {tmp_path}{end}"
    missing = tmp_path / "nowhere"
    assert said(missing) == f"data: {missing}: no such directory; give one that holds .pt files"


def test_the_place_of_the_directory_does_not_change_the_data(tmp_path: Path) -> None:
    one, other = (survey(write_amass(tmp_path / name), ALL, 5).sha256 for name in ("a", "b"))
    assert one == other
    torch.save(without(sequences(0, 3), "contact"), tmp_path / "b" / "CMU.pt")
    assert survey(tmp_path / "b", ALL, 5).sha256 != one


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_has_changed_meanwhile_is_refused(tmp_path: Path, *, again: bool) -> None:
    torch.save(sequences(0, 2), tmp_path / "a.pt")
    files, found = MotionFiles(), survey(tmp_path, ALL, 5).train
    assert files.read(found[1], again=again).translation_N3.shape == (67, 3)
    gone = Recording(tmp_path / "a.pt", "2", "2", 74)
    with pytest.raises(InvalidSpec, match=r"a\.pt\[2\]: not the 74 frames .* do not change recordings"):
        files.read(gone, again=again)
