"""Required coverage: every line and branch of the core, and most of the rest."""

import json
from pathlib import Path

import pytest

from scripts import coverage_check as covered

SOURCE = """\
def name(answer):
    match answer:
        case True:
            return "yes"
        case False:{mark}
            return "no"
"""
PAST = (2, 0)
"""Neither of the two cases."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(covered, "ROOT", tmp_path)
    monkeypatch.setattr(covered, "FOLDER", tmp_path / ".coverage")
    (tmp_path / ".coverage").mkdir()
    (tmp_path / "runner" / "core").mkdir(parents=True)
    return tmp_path


def report(root: Path, worker: str, path: str, missing: list[int], past: list[tuple[int, int]]) -> None:
    every = {1, 2, 3, 4, 5, 6}
    found = {
        "executed_lines": sorted(every - {*missing}),
        "missing_lines": missing,
        "executed_branches": [(2, 4), (2, 6)],
        "missing_branches": past,
    }
    meta = {"software": "slipcover", "branch_coverage": True}
    (root / ".coverage" / f"{worker}.json").write_text(json.dumps({"meta": meta, "files": {path: found}}))


def test_a_way_that_the_type_checker_excludes_need_not_run(root: Path) -> None:
    (root / "runner/core/a.py").write_text(SOURCE.format(mark="  # exhaustive"))
    report(root, "gw0", "runner/core/a.py", [], [PAST])
    assert covered.main() == 0


def test_a_way_that_may_be_taken_must_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "runner/core/a.py").write_text(SOURCE.format(mark=""))
    report(root, "gw0", "runner/core/a.py", [], [PAST])
    assert covered.main() == 1
    assert capsys.readouterr().out.startswith("runner/core/a.py: 2->exit\n")


def test_a_case_of_an_exhaustive_match_must_run(root: Path) -> None:
    (root / "runner/core/a.py").write_text(SOURCE.format(mark="  # exhaustive"))
    report(root, "gw0", "runner/core/a.py", [], [(2, 6)])
    assert covered.main() == 1


def test_what_one_worker_has_not_run_another_may_have(root: Path) -> None:
    (root / "runner/core/a.py").write_text(SOURCE.format(mark="  # exhaustive"))
    report(root, "gw0", "runner/core/a.py", [6], [PAST])
    assert covered.main() == 1
    report(root, "gw1", "runner/core/a.py", [], [PAST])
    assert covered.main() == 0


def test_elsewhere_most_of_it_must_run(root: Path) -> None:
    (root / "runner/a.py").write_text(SOURCE.format(mark="  # exhaustive"))
    report(root, "gw0", "runner/a.py", [], [PAST])
    assert covered.main() == 0
    report(root, "gw0", "runner/a.py", [6], [PAST])
    assert covered.main() == 1


def test_a_program_of_its_own_is_left_to_the_tests_that_run_it(root: Path) -> None:
    for path in ("runner/a.py", "jobs/inside/a.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(SOURCE.format(mark="  # exhaustive"))
    report(root, "gw0", "runner/a.py", [], [PAST])
    report(root, "gw1", "jobs/inside/a.py", [1, 2, 3, 4, 5, 6], [PAST])
    assert covered.main() == 0


def test_what_is_left_out_exists() -> None:
    assert all((Path(covered.__file__).parents[1] / path).exists() for path in covered.APART)


def test_no_report_is_not_a_report_of_nothing_missing(root: Path) -> None:
    assert root.is_dir()
    with pytest.raises(SystemExit, match="nothing is there"):
        covered.main()
