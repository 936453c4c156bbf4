"""The layouts of pairs are read whole, or refused with the file, the line and what to do."""

from pathlib import Path

import pytest

from jobs.data.pairs import FIRST, SECOND, SIMILAR, PairSet, Reading, read_pairs
from jobs.training.failures import InvalidSpec

FOLDED = Reading(longest=20, folds=3, fold=0)
SPLIT = Reading(longest=20)

SCORES = "CC 1\nCCC 2.5\nCCO 0\nCN 4\nCO 3\nCCN 2\n"
JUDGED = "first,second,label,split\nCC,CCC,First,train\nCC,CO,similar,train\nCN,CCN,SECOND,test\n"
LMOL = "img1,img2,score1,score2,label\nCC,CCC,1,2.5,Second\nCCO,CN,0,4,Second\nCO,CCN,3,2,Similar\n"


def read(tmp_path: Path, name: str, text: str | bytes, reading: Reading) -> PairSet:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_pairs(tmp_path, reading)


# --- What is read


def test_folds_divide_the_texts_of_a_list_of_scores(tmp_path: Path) -> None:
    tested: list[str] = []
    for fold in range(3):
        found = read(tmp_path, "labels.txt", SCORES, Reading(longest=20, folds=3, fold=fold))
        assert len(found.test.texts) == 2
        assert set(found.train.texts).isdisjoint(found.test.texts)
        assert found.test.value_M is not None
        tested += found.test.texts
    assert sorted(tested) == ["CC", "CCC", "CCN", "CCO", "CN", "CO"]


@pytest.mark.parametrize(
    ("name", "text", "reading"),
    [
        ("labels.txt", SCORES, FOLDED),
        ("pairs.csv", JUDGED, SPLIT),
        ("molecules.csv", "smiles,logs,split\nCC,1,train\nCO,2,test\n", SPLIT),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_text(
    tmp_path: Path, name: str, text: str, reading: Reading
) -> None:
    plain = read(tmp_path, name, text, reading)
    assert read(tmp_path, name, "\ufeff" + text, reading).sha256 == plain.sha256


def test_a_fold_does_not_depend_on_the_order_of_the_lines(tmp_path: Path) -> None:
    one = read(tmp_path, "labels.txt", SCORES, FOLDED)
    other = read(tmp_path, "labels.txt", "".join(reversed(SCORES.splitlines(keepends=True))), FOLDED)
    assert set(one.test.texts) == set(other.test.texts)


def test_a_table_of_molecules_keeps_its_split_or_is_divided_into_folds(tmp_path: Path) -> None:
    table = "smiles,logs,split\nCC,1,train\nCCC,2,train\nCCO,3,test\nCC,1,test\nCN,4,train\n"
    split = read(tmp_path, "molecules.csv", table, SPLIT)
    assert (split.train.texts, split.test.texts) == (("CC", "CCC", "CN"), ("CCO",))
    assert split.notes == ("1 test molecules are training molecules too, and were left out",)
    folded = read_pairs(tmp_path, FOLDED)
    assert sorted([*folded.train.texts, *folded.test.texts]) == ["CC", "CCC", "CCO", "CN"]
    assert folded.notes == ("1 rows repeat a molecule of an earlier one, and were left out",)


def test_judged_pairs_keep_their_split_and_leave_out_what_was_trained_on(tmp_path: Path) -> None:
    found = read(tmp_path, "pairs.csv", JUDGED + "CC,CN,First,test\n", SPLIT)
    assert found.train.listed is not None
    assert found.test.listed is not None
    assert found.train.texts == ("CC", "CCC", "CO")
    assert [each.tolist() for each in found.train.listed] == [[[0, 1], [0, 2]], [FIRST, SIMILAR]]
    assert [each.tolist() for each in found.test.listed] == [[[0, 1]], [SECOND]]
    assert found.train.value_M is None
    assert found.notes == ("1 test pairs have a text of a training pair, and were left out",)


def test_the_columns_of_lmol_are_known_and_their_scores_are_the_values(tmp_path: Path) -> None:
    """A pair is on a side of the fold if both of its texts are."""
    sides = [read(tmp_path, "pairs.csv", LMOL, Reading(longest=20, folds=2, fold=fold)) for fold in (0, 1)]
    for found in sides:
        for part in (found.train, found.test):
            assert part.listed is not None
            assert part.value_M is not None
            assert len(part.value_M) == len(part.texts) == 2 * len(part.listed[0])
    assert sum(len(found.test.texts) for found in sides) <= 6


def test_scores_alone_judge_a_pair_by_the_threshold(tmp_path: Path) -> None:
    text = "first,second,score1,score2,split\nA,B,1,1.5,train\nC,D,3,1,train\nE,F,1,3,test\n"
    found = read(tmp_path, "pairs.csv", text, Reading(longest=20, threshold=1.0))
    assert found.train.listed is not None
    assert found.test.listed is not None
    assert found.train.listed[1].tolist() == [SIMILAR, FIRST]
    assert found.test.listed[1].tolist() == [SECOND]


def test_other_texts_than_smiles_are_for_models_that_can_read_them(tmp_path: Path) -> None:
    text = "first,second,label,split\nein Haus,ein Bär,First,train\n"
    found = read(tmp_path, "pairs.csv", text, Reading(longest=20, any_text=True))
    assert found.train.texts == ("ein Haus", "ein Bär")
    with pytest.raises(InvalidSpec, match=r"pairs\.csv:2: smiles 'ein Haus' has characters that no SMILES"):
        read_pairs(tmp_path, SPLIT)


def test_the_signature_is_that_of_the_content(tmp_path: Path) -> None:
    before = read(tmp_path, "pairs.csv", JUDGED, SPLIT).sha256
    assert read(tmp_path, "pairs.csv", JUDGED.replace("\n", "\r\n"), SPLIT).sha256 == before
    assert read(tmp_path, "pairs.csv", JUDGED.replace("similar", "first"), SPLIT).sha256 != before


# --- What is refused


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("CC\n", r"labels\.txt:1: must be a text, a space and its score, not 'CC'"),
        ("CC 1\n\nCCC 2\n", r":2: must be a text, a space and its score, not ''"),
        ("CC one\n", r":1: the score is 'one', which is no number"),
        ("CC 1\nCCC inf\n", r":2: the score is inf, which is not finite"),
        ("CC 1\nCCC 2\nCC 1\n", r":3: CC has a score in line 1; take one of them out"),
        ("C" * 21 + " 1\n", r":1: smiles has 21 characters, and length allows 20; raise length"),
        ("C C 1\n", r":1: smiles 'C C' has characters that no SMILES has"),
        ("C\u00e9 1\n", r":1: smiles 'C\u00e9' has characters that no SMILES has"),
        ("CC 1\nC\x00C 2\n", r":2: smiles 'C\\x00C' has characters"),
        (b"CC 1\n\xff\xfe 2\n", r"labels\.txt: .*; it must be text in UTF-8"),
    ],
)
def test_a_bad_list_of_scores_is_refused_with_its_line(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        read(tmp_path, "labels.txt", text, FOLDED)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "first,other,label,split\n",
            r"pairs\.csv:1: no column second among first, other, label, split; add",
        ),
        ("first,second,score1,split\n", r":1: no column label \(or score1 and score2\) among"),
        ("first,second,label\nA,B,First\n", r":1: no column split \(or give folds and fold\) among"),
        ("first,second,label,split\nA,B,First\n", r":2: not as many fields as columns; the file may be cut"),
        ("first,second,label,split\nA,A,First,train\n", r":2: A is compared with itself; take the row out"),
        ("first,second,label,split\nA,B,better,train\n", r":2: label is 'better'; it must be First, Second"),
        ("first,second,label,split\nA,B,First,dev\n", r":2: split is 'dev'; it must be train or test"),
        ("first,second,score1,score2,split\nA,B,1,x,train\n", r":2: score2 is 'x', which is no number"),
        (
            "first,second,score1,score2,split\nA,B,1,2,train\nC,A,1,1.5,train\n",
            r":3: score2 of A is 1\.5, and 1 in line 2; correct one",
        ),
        (
            "first,second,score1,score2,label,split\nA,B,1,9,First,train\n",
            r":2: label is First, and the other one has the higher score; correct the row",
        ),
        ("first,second,label,split\n,B,First,train\n", r":2: smiles is empty"),
        ('first,second,label,split\n"A,B,First,train\n', r"unexpected end of data; it must be text"),
    ],
)
def test_a_bad_table_of_pairs_is_refused_with_its_row(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        read(tmp_path, "pairs.csv", text, SPLIT)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A  B,\x07,First,train\n", r":2: '\\x07' is not a printable text; correct it"),
        (" ,B,First,train\n", r":2: ' ' is not a printable text"),
        ("A" * 21 + ",B,First,train\n", r":2: a text of 21 characters, and length allows 20; raise length"),
    ],
)
def test_a_text_that_no_model_can_be_shown_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    whole = "first,second,label,split\n" + text
    with pytest.raises(InvalidSpec, match=complaint):
        read(tmp_path, "pairs.csv", whole, Reading(longest=20, any_text=True))


def test_scores_without_a_split_need_folds(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"labels\.txt: has no split; give folds and fold"):
        read(tmp_path, "labels.txt", SCORES, SPLIT)


def test_a_directory_holds_one_layout(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSpec, match=r"must hold one of molecules\.csv, labels\.txt, pairs\.csv, not none"
    ):
        read_pairs(tmp_path, SPLIT)
    (tmp_path / "labels.txt").write_text(SCORES)
    with pytest.raises(InvalidSpec, match=r"not labels\.txt and pairs\.csv; name the file itself"):
        read(tmp_path, "pairs.csv", JUDGED, SPLIT)
    assert read_pairs(tmp_path / "pairs.csv", SPLIT).train.texts == ("CC", "CCC", "CO")


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"data: .*no\.csv: No such file.*; give one of molecules\.csv"):
        read_pairs(tmp_path / "no.csv", SPLIT)


HEAD = LMOL.splitlines()[0]


def write_folds(directory: Path, *names: str) -> Path:
    (directory / "pairs").mkdir()
    for name in names:
        rows = "\nCC,CCC,1,2.5,Second\n" if "train" in name else "\nCCO,CN,0,4,Second\nCC,CN,1,4,Second\n"
        (directory / "pairs" / name).write_text(HEAD + rows)
    return directory


def test_the_files_of_a_fold_are_read_as_they_are(tmp_path: Path) -> None:
    names = ("train_fold1_30000.csv", "eval_fold1_3000.csv", "train_fold10.csv", "eval_fold10.csv")
    folder = write_folds(tmp_path, *names)
    found = read_pairs(folder, Reading(longest=20, folds=10, fold=0))
    assert (found.train.texts, found.test.texts) == (("CC", "CCC"), ("CCO", "CN"))
    assert found.notes == ("1 test pairs have a text of a training pair, and were left out",)
    assert read_pairs(folder, Reading(longest=20, folds=10, fold=9)).train.texts == ("CC", "CCC")


@pytest.mark.parametrize(
    ("names", "reading", "fact"),
    [
        (("train_fold1.csv", "eval_fold1.csv"), SPLIT, "holds files of folds; give folds and fold"),
        (
            ("train_fold1.csv", "eval_fold1.csv"),
            Reading(longest=20, folds=5, fold=1),
            "one train_fold2_.*not none",
        ),
        (("train_fold1.csv",), FOLDED, "must hold one eval_fold1_.*csv for fold 0, not none"),
        (
            ("train_fold1.csv", "train_fold1_9.csv"),
            FOLDED,
            "not pairs/train_fold1.csv and pairs/train_fold1_9.csv",
        ),
    ],
)
def test_folds_whose_files_are_not_there_are_refused(
    tmp_path: Path, names: tuple[str, ...], reading: Reading, fact: str
) -> None:
    with pytest.raises(InvalidSpec, match=fact):
        read_pairs(write_folds(tmp_path, *names), reading)
