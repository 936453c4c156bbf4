from pathlib import Path

from runner.core.ports.users import PathKind
from runner.files.job import paths
from runner.files.job.load import parse_job


def test_every_path_of_a_job_is_checked_and_reported_at_its_position(tmp_path: Path) -> None:
    text = (
        "workload: {kind: causal_lm, data: corpus}\n"
        "mounts:\n  - {source: /a b, target: /data/a}\n  - {source: c, target: /data/c, read_only: false}\n"
        "secrets: {key: d}\n"
    )
    asked: list[tuple[Path, PathKind]] = []

    def check(path: Path, kind: PathKind) -> str:
        asked.append((path, kind))
        return "no"

    job = parse_job(text.encode(), Path("job.yaml"))
    found = [problem.line(job.origin.path) for problem in paths.find_path_problems(job, tmp_path, check)]
    assert asked == [
        (tmp_path / "corpus", "either"),
        (Path("/a b"), "either"),
        (tmp_path / "c", "writable"),
        (tmp_path / "d", "secret"),
    ]
    assert found == [
        "job.yaml:1:35: workload.data: no",
        "job.yaml:3:14: mounts[0].source: no",
        "job.yaml:4:14: mounts[1].source: no",
        "job.yaml:5:16: secrets.key: no",
    ]


def test_the_standard_library_is_not_a_path() -> None:
    job = parse_job(b"workload: {kind: causal_lm, data: stdlib}\n", Path("job.yaml"))
    assert list(paths.named_paths(job)) == []


def test_a_path_that_a_workload_names_besides_its_data_is_checked_at_its_position(tmp_path: Path) -> None:
    text = b"workload:\n  {kind: pair_classifier, data: p.csv, form: sequence, pretrained: llama}\n"
    job = parse_job(text, Path("job.yaml"))
    found = paths.find_path_problems(job, tmp_path, lambda path, _kind: f"{path.name} is not there")
    assert [problem.line(job.origin.path) for problem in found] == [
        "job.yaml:2:33: workload.data: p.csv is not there",
        "job.yaml:2:68: workload.pretrained: llama is not there",
    ]
