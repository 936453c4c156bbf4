"""The policy of a job: found, kept, and held under the job's own ceilings."""

from datetime import timedelta
from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.core.policy.digest import compute_digest
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile
from runner.files.policy import job_policy as of_job
from runner.files.policy.load import PolicySource, load_named_policy

MINUTE = timedelta(minutes=1)
OWN = "policy: 1\nextends: {}\nceilings: {{attempts: 2}}\n"


def job(more: str = "") -> JobFile:
    return parse_job(f"workload: {{kind: causal_lm, data: stdlib}}\n{more}".encode(), Path("job.yaml"))


def complaint(found: JobFile, base: Path) -> str:
    with pytest.raises(FileError) as caught:
        of_job.find_policy(found, base)
    return "\n".join(caught.value.lines)


@pytest.mark.parametrize("name", PolicySource().names())
def test_every_policy_that_comes_with_the_runner_survives_being_kept(name: str, tmp_path: Path) -> None:
    found = of_job.find_policy(job(f"policy: {name}\n"), tmp_path)
    assert found == load_named_policy(name)
    assert of_job.deserialize_policy(of_job.serialize_policy(found)) == found


def test_a_job_of_an_older_runner_has_the_default_policy() -> None:
    assert of_job.deserialize_policy(None) == load_named_policy("default")


def test_a_file_is_found_beside_the_job_file_and_so_is_what_it_extends(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN.format("./base.yaml"))
    (tmp_path / "base.yaml").write_text("policy: 1\nextends: strict\nceilings: {attempts: 5}\n")
    seen: list[str] = []

    def reader(path: Path) -> bytes:
        seen.append(path.name)
        return path.read_bytes()

    found = of_job.find_policy(job("policy: ./mine.yaml\n"), tmp_path, reader)
    assert (found.name, found.ceilings.attempts) == ("mine", 2)
    assert seen == ["mine.yaml", "base.yaml"]  # what comes with the runner is the runner's own
    kept = of_job.deserialize_policy(of_job.serialize_policy(found))
    assert (kept.on_exit, kept.ceilings.attempts) == (found.on_exit, 2)


def test_waits_that_do_not_grow_survive_being_kept(tmp_path: Path) -> None:
    text = "policy: 1\nextends: default\nbackoff: {first: 1m, factor: 1}\n"
    (tmp_path / "mine.yaml").write_text(text)
    found = of_job.find_policy(job("policy: ./mine.yaml\n"), tmp_path)
    assert of_job.deserialize_policy(of_job.serialize_policy(found)).backoff == found.backoff


def test_mistakes_have_their_place_in_the_file_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("policy: 1\non_exit: [{name: a, when: {}, do: resum}]\n")
    assert complaint(job("policy: ./mine.yaml\n"), tmp_path) == (
        f'{tmp_path}/mine.yaml:2:35: on_exit[0].do: there is no verb "resum"; did you mean "resume"?'
    )


@pytest.mark.parametrize("name", ["other.yaml", "./other.yaml", "./beside", "./loop.yaml"])
def test_a_file_that_cannot_be_read_is_a_mistake_of_the_job_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    said = complaint(job(f"policy: {name}\n"), tmp_path)
    assert said.startswith(f"job.yaml:2:9: policy: {tmp_path / name}: ")


@pytest.mark.parametrize("text", ["ann:secret:1:0\nbob:secret:2:0\n", "password: secret\n", "- secret\n"])
def test_a_file_that_is_no_policy_is_not_repeated_in_the_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(text)
    (tmp_path / "mine.yaml").write_text("policy: 1\nextends: ./other\non_exit: []\n")
    (said,) = complaint(job("policy: ./other\n"), tmp_path).splitlines()
    assert said == f"{tmp_path}/other:1:1: is not a policy; a policy file begins with the line policy: 1"
    assert "secret" not in complaint(job("policy: ./mine.yaml\n"), tmp_path)


def test_a_policy_has_one_digest_and_another_one_beside_it_where_the_job_file_tightens_it(
    tmp_path: Path,
) -> None:
    text = "policy: 1\nextends: default\nbackoff: {factor: 1}\nceilings: {attempts: 2}\n"
    (tmp_path / "mine.yaml").write_text(text)
    mine = of_job.find_policy(job("policy: mine.yaml\n"), tmp_path)
    kept, own = of_job.serialize_policy(mine), of_job.stored_digest(mine)
    free, tight = job(), job("retry: {max_attempts: 1}\n")
    assert of_job.describe_digest(kept, of_job.apply_job_limits(free, of_job.deserialize_policy(kept))) == own
    held = of_job.apply_job_limits(tight, of_job.deserialize_policy(kept))
    assert of_job.describe_digest(kept, held) == f"{own} + retry: {compute_digest(held)}"


def test_a_name_that_there_is_not_is_a_mistake_of_the_job_file(tmp_path: Path) -> None:
    said = complaint(job("policy: pateint\n"), tmp_path)
    assert said == 'job.yaml:2:9: policy: there is no policy "pateint"; did you mean "patient"?'


def test_a_remedy_that_names_no_profile_is_a_mistake(tmp_path: Path) -> None:
    rule = "{name: a, when: {}, do: resume, with: {profile: compatt}, tries: 1}"
    (tmp_path / "mine.yaml").write_text(f"policy: 1\non_exit: [{rule}]\n")
    said = complaint(job("policy: ./mine.yaml\n"), tmp_path)
    assert 'job.yaml:2:9: policy: rule "a": there is no profile "compatt"; did you mean "compat"?' in said


@pytest.mark.parametrize("text", ["Default", "-", "a b", "~/mine.yaml", "$HOME/mine.yaml", "${X}.yaml"])
def test_what_is_neither_a_name_nor_a_path_is_refused(text: str) -> None:
    with pytest.raises(FileError, match="policy: "):
        job(f'policy: "{text}"\n')


def test_the_job_file_tightens_ceilings_and_never_loosens_them() -> None:
    default = load_named_policy("default")
    tight = of_job.apply_job_limits(
        job("retry: {max_attempts: 2, no_progress: 1}\nresources: {time_limit: 1h}\n"), default
    )
    assert (tight.ceilings.attempts, tight.ceilings.no_progress) == (2, 1)
    assert tight.ceilings.wall == 60 * MINUTE
    loose = job("retry: {max_attempts: 900, no_progress: 900}\nresources: {time_limit: 100d}\n")
    assert of_job.apply_job_limits(loose, default) == default
    assert of_job.apply_job_limits(job(), default) == default


@pytest.mark.parametrize(
    ("written", "first", "longest"),
    [
        ("{backoff: 1s}", MINUTE / 60, 5 * MINUTE),
        ("{backoff: 10m}", 10 * MINUTE, 10 * MINUTE),
        ("{backoff_max: 1s}", MINUTE / 60, MINUTE / 60),
        ("{backoff: 0s}", 0 * MINUTE, 5 * MINUTE),
        ("{backoff: 1m, backoff_max: 2m}", MINUTE, 2 * MINUTE),
    ],
)
def test_the_job_file_says_how_long_to_wait(written: str, first: timedelta, longest: timedelta) -> None:
    backoff = of_job.apply_job_limits(job(f"retry: {written}\n"), load_named_policy("default")).backoff
    assert (backoff.first, backoff.max) == (first, longest)
