from datetime import timedelta
from pathlib import Path

import pytest

from jobs.contract import CheckpointPlan
from jobs.contract.plans.causal_lm import CausalLm
from jobs.contract.plans.resident_transformer import ResidentTransformer
from runner.base.textfile import FileError
from runner.files.job.load import parse_job, parse_jobs
from runner.files.job.model import WORKLOADS, JobFile, Retry, checkpoint_plan, resolve_profile
from runner.files.job.program_files import check_checkpoint_files

REPOSITORY = Path(__file__).parents[5]
SHIPPED = sorted(
    (*(REPOSITORY / "examples").glob("*.yaml"), REPOSITORY / "runner" / "files" / "job" / "template.yaml")
)
WORKLOAD = "workload: {kind: causal_lm, data: stdlib}\n"


def stored(job: JobFile) -> JobFile:
    """Return a job after it was written as JSON and read again."""
    return JobFile.model_validate_json(job.model_dump_json())


def job(text: str = "", name: str = "job.yaml") -> JobFile:
    return parse_job((WORKLOAD + text).encode(), Path(name))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_job_file_is_right_as_it_stands(path: Path) -> None:
    assert parse_job(path.read_bytes(), path).workload.kind in WORKLOADS


def test_defaults_are_those_of_an_ordinary_job() -> None:
    found = job()
    assert found.workload == CausalLm(data="stdlib")
    assert (found.name, found.accelerator, found.image.name, found.priority) == ("job", "auto", "auto", 50)
    assert (found.resources.gpus, found.resources.cpus, found.resources.memory) == (0, 1.0, 4 * 1024**3)
    assert found.resources.time_limit is None
    assert found.stop_grace == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("train.yaml", "train"),
        ("my job (2).yaml", "my-job-2"),
        ("two\nlines.yaml", "two-lines"),
        ("--rm -rf.yaml", "rm--rf"),
        ("..yaml", "job"),
        ("...yaml", "job"),
        (".hidden.yaml", "hidden"),
        (".yaml", "yaml"),
        ("日本.yaml", "job"),
        ("x" * 200, "x" * 63),
    ],
)
def test_a_job_without_a_name_is_called_after_its_file(file: str, name: str) -> None:
    assert job(name=file).name == name


def test_numbers_in_the_environment_and_in_labels_stay_as_they_were_typed() -> None:
    found = job("environment: {RATE: 1.10, COUNT: 007, HEX: 0x10}\nlabels: {version: 2.0}\n")
    assert found.environment == {"RATE": "1.10", "COUNT": "007", "HEX": "0x10"}
    assert found.labels == {"version": "2.0"}


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PYTHONUNBUFFERED", "HOMEPAGE", "TZ"]
)
def test_a_harmless_variable_is_not_refused(name: str) -> None:
    assert job(f"environment: {{{name}: '1'}}\n").environment == {name: "1"}


@pytest.mark.parametrize(
    "name",
    ["LD_AUDIT", "ld_preload", "NVIDIA_DRIVER_CAPABILITIES", "AMD_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
     "GPU_DEVICE_ORDINAL", "DOCKER_CONFIG", "PYTHONHOME", "BASH_ENV", "USER", "LOGNAME", "PATH", "TMPDIR",
     "TRITON_CACHE_DIR", "CUBLAS_WORKSPACE_CONFIG", "AWS_SECRET_ACCESS_KEY", "MYSQL_PASSWD", "apikey"],
)  # fmt: skip
def test_a_dangerous_variable_is_refused(name: str) -> None:
    with pytest.raises(FileError, match=rf"job.yaml:2:15: environment.{name}: "):
        job(f"environment: {{{name}: x}}\n")


def test_a_long_variable_is_refused() -> None:
    with pytest.raises(FileError, match="longer than 32 KiB"):
        job(f"environment: {{A: {'x' * 40_000}}}\n")


def test_a_long_argument_of_a_program_is_refused_at_its_place() -> None:
    def program(argument: str) -> JobFile:
        text = f"workload: {{kind: program, command: [echo, {argument}]}}\n"
        return parse_job(text.encode(), Path("job.yaml"))

    assert program("x" * 32 * 1024).workload.kind == "program"
    said = r"job.yaml:1:43: workload.command\[1\]: is longer than 32 KiB; put it in a file and mount that$"
    with pytest.raises(FileError, match=said):
        program("x" * 140_000)


def test_a_path_longer_than_the_kernel_allows_is_refused() -> None:
    with pytest.raises(FileError, match="longer than 4095 bytes, the limit for a path"):
        job(f"secrets: {{a: {'x' * 5000}}}\n")


def test_a_mount_target_of_odd_characters_is_refused_and_a_normal_one_is_tidied() -> None:
    assert job("mounts: [{source: ., target: /data//a/./b/}]\n").mounts[0].target == "/data/a/b"
    with pytest.raises(FileError, match="must have only printable characters"):
        job('mounts: [{source: ., target: "/data/a\\nb"}]\n')


def test_the_source_of_a_mount_may_have_any_name_that_a_file_can_have() -> None:
    found = job('mounts: [{source: "it\'s; a\\nb $x", target: /data/a}]\n')
    assert found.mounts[0].source == "it's; a\nb $x"


def test_a_job_survives_writing_and_reading() -> None:
    path = REPOSITORY / "examples" / "with_everything.yaml"
    before = parse_job(path.read_bytes(), path)
    after = stored(before)
    assert after == before
    assert resolve_profile(after, "cpu") == resolve_profile(before, "cpu")
    assert after.model_dump_json() == before.model_dump_json()


def test_the_layout_of_a_file_does_not_make_another_job() -> None:
    assert job("seed: 3\npriority: 4\n") == job("# a comment\npriority: 4\n\nseed: 3\n")


def test_a_job_without_a_file_complains_without_a_place() -> None:
    problem = stored(job()).origin.problem(("workload", "data"), "is gone")
    assert problem.line(Path("job.yaml")) == "job.yaml: workload.data: is gone"


def test_the_rest_of_the_house_gets_its_own_values() -> None:
    found = job(
        "checkpoint: {every: 90s, every_steps: 10, keep: 4, milestone_every: 100}\n"
        "retry: {max_attempts: 7, no_progress: 2, backoff: 1s, backoff_max: 1m}\n"
    )
    saving = CheckpointPlan(every_s=90, every_steps=10, keep=4, milestone_every=100)
    assert checkpoint_plan(found, 1.0) == saving
    second = timedelta(seconds=1)
    waits = {"backoff": second, "backoff_max": 60 * second}
    assert found.retry == Retry(max_attempts=7, no_progress=2, **waits)


def test_saving_by_steps_alone_is_possible() -> None:
    plan = checkpoint_plan(job("checkpoint: {every: null, every_steps: 10}\n"), 1.0)
    assert (plan.every_s, plan.every_steps) == (None, 10)


def test_how_often_to_save_is_left_to_measurement_unless_the_file_says_it() -> None:
    plan = checkpoint_plan(job(), 7200.0)
    assert (plan.every_s, plan.mean_between_s) == (120, 7200)
    assert checkpoint_plan(job("checkpoint: {every: auto}\n"), 7200.0) == plan
    assert checkpoint_plan(job("checkpoint: {every: 2m}\n"), 7200.0).mean_between_s is None


def test_an_automatic_interval_survives_being_kept() -> None:
    for text in (
        "checkpoint: {every: auto}\n",
        "checkpoint: {every: 90s}\n",
        "checkpoint: {every: null, every_steps: 5}\n",
    ):
        assert stored(job(text)).checkpoint == job(text).checkpoint


def test_a_name_that_is_made_from_that_of_a_file_is_no_number() -> None:
    text = b"workload: {kind: causal_lm, data: stdlib}\n"
    assert parse_job(text, Path("12.yaml")).name == "job-12"
    digits = "1" * 70
    assert parse_job(text, Path(f"{digits}.yaml")).name == f"job-{digits[:59]}"


def test_a_job_that_was_called_by_a_number_earlier_can_still_be_read() -> None:
    job = parse_job(b"workload: {kind: causal_lm, data: stdlib}\n", Path("a.yaml"))
    assert stored(job.model_copy(update={"name": "12"})).name == "12"


def test_a_number_as_a_name_does_not_matter_where_another_one_is_given() -> None:
    text = b"name: '12'\nworkload: {kind: causal_lm, data: stdlib}\n"
    with pytest.raises(FileError, match="must not be a number"):
        parse_jobs(text, Path("a.yaml"))
    assert len(parse_jobs(text, Path("a.yaml"), name="nightly").jobs) == 1


def test_the_example_of_annotations_has_as_many_as_the_document() -> None:
    path = REPOSITORY / "examples" / "resident_transformer_annotations.yaml"
    found = parse_job(path.read_bytes(), path).workload
    assert isinstance(found, ResidentTransformer)
    assert found.annotations is not None
    trained = found.synthetic_annotations * (1 - found.annotations.held_out)
    assert (trained, found.epochs, found.batch_size) == (10, 5, 1)


@pytest.mark.parametrize("written", ["out/c-*.pt", "./out/c-*.pt", "././out/c-*.pt", "out/c-*.pt/"])
def test_a_pattern_of_checkpoints_may_begin_and_end_as_people_write_paths(written: str) -> None:
    assert check_checkpoint_files(written) == "out/c-*.pt"


def test_a_path_below_a_mount_may_be_short() -> None:
    assert check_checkpoint_files("/data/o/*") == "/data/o/*"
