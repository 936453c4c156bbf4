"""Real differences between two job files, whatever words they use."""

from pathlib import Path

import pytest

from runner.core.policy.change_class import ChangeClass, change_rows, classify_field
from runner.files.policy.job_policy import stored_digest
from runner.files.policy.load import load_named_policy
from runner.files.revision import DataReference, Revision
from runner.services.rollout.diff import compare_revisions, fields
from tests.unit.runner.services.submission.test_revision import resolved

LM = "{kind: causal_lm, data: stdlib}"


def names(before: Revision, after: Revision) -> list[str]:
    return [change.name for change in compare_revisions(before, after).changes]


def side(base: Path, rest: str = "", workload: str = LM) -> Revision:
    return resolved(workload, base, rest)


def test_other_words_for_the_same_are_no_difference(tmp_path: Path) -> None:
    short = side(tmp_path, "profile: cpu\nresources: {memory: 4GiB, cpus: 1}\n")
    long = side(
        tmp_path, "profile: {extends: cpu}\nresources: {memory: 4096MiB, cpus: 1.0}\naccelerator: cpu\n"
    )
    assert names(short, long) == []


def test_a_profile_is_compared_by_what_it_comes_to(tmp_path: Path) -> None:
    plain = side(tmp_path, "profile: {extends: compat, name: mine}\n")
    other = side(tmp_path, "profile: {extends: compat, name: theirs, loader_workers: 0, precision: fp32}\n")
    assert names(plain, other) == []
    assert names(plain, side(tmp_path, "profile: {extends: compat, precision: bf16}\n")) == [
        "profile.precision"
    ]


def test_more_cpus_are_more_threads_unless_the_profile_says_how_many(tmp_path: Path) -> None:
    more = "resources: {cpus: 4}\n"
    assert names(side(tmp_path), side(tmp_path, more)) == ["profile.threads", "resources.cpus"]
    fixed = "profile: {threads: 1}\n"
    found = compare_revisions(side(tmp_path, fixed), side(tmp_path, fixed + more))
    assert [change.name for change in found.changes] == ["resources.cpus"]
    assert found.same_bits


def test_data_are_those_that_a_path_leads_to(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "texts").mkdir(parents=True)
    texts = "{kind: causal_lm, data: texts}"
    here, there = side(tmp_path / "a", workload=texts), side(tmp_path / "b", workload=texts)
    [change] = compare_revisions(here, there).changes
    assert (change.name, change.kind) == ("workload.data", ChangeClass.E)
    assert change.after == str(tmp_path / "b" / "texts")
    assert names(here, side(tmp_path, workload="{kind: causal_lm, data: a/texts}")) == []


def test_prepared_data_are_compared_by_their_content(tmp_path: Path) -> None:
    """A revision of before that has no digest is compared by the path."""
    made = side(tmp_path)
    sides = [
        made.model_copy(
            update={"data": DataReference(path="/state/data/watch", prepared=True, digest=digest)}
        )
        for digest in ("a" * 64, "b" * 64, None)
    ]
    [change] = compare_revisions(sides[0], sides[1]).changes
    assert (change.name, change.kind) == ("workload.data", ChangeClass.E)
    assert change.after == f"/state/data/watch ({'b' * 12})"
    assert names(sides[0], sides[2]) == names(sides[2], sides[0]) == names(sides[1], sides[1]) == []


def test_mounts_and_code_are_compared_by_where_they_lie(tmp_path: Path) -> None:
    program = "{kind: program, command: [train], code: src}"
    mounts = "mounts: [{source: src, target: /data/src}]\n"
    here, there = (side(tmp_path / name, mounts, program) for name in ("a", "b"))
    assert names(here, there) == ["mounts", "workload.code"]
    assert names(here, side(tmp_path / "a", "", program)) == ["mounts"]
    assert compare_revisions(here, there).kind is ChangeClass.C


def test_single_variables_secrets_and_labels_are_fields(tmp_path: Path) -> None:
    before = side(tmp_path, "environment: {A: x, B: y}\nlabels: {team: a}\n")
    after = side(tmp_path, "environment: {A: x, B: z}\nlabels: {team: b}\n")
    assert names(before, after) == ["environment.B", "labels.team"]


def test_a_policy_is_its_text_and_not_its_name(tmp_path: Path) -> None:
    one = side(tmp_path)
    text = "policy: 1\nname: default\non_exit: [{name: a, when: {}, do: hold}]\n"
    edited = one.model_copy(update={"policy": text})
    assert names(one, edited) == ["policy"]
    assert compare_revisions(one, edited).kind is ChangeClass.A
    assert fields(one).values["policy"] == f"default ({stored_digest(load_named_policy('default'))})"


def test_a_policy_whose_file_is_spelt_otherwise_is_the_same_policy(tmp_path: Path) -> None:
    text = "policy: 1\nname: mine\non_exit: [{name: again, when: {}, do: resume}]\n"
    one, other = (
        side(tmp_path).model_copy(update={"policy": text, "job": side(tmp_path, rest).job})
        for rest in ("policy: mine.yaml\n", "policy: ./mine.yaml\n")
    )
    assert names(one, other) == []
    edited = other.model_copy(update={"policy": text.replace("resume", "hold")})
    assert names(one, edited) == ["policy"]


@pytest.mark.parametrize(("rest", "dropout"), [("", True), (", dropout: 0", False)])
def test_dropout_is_known_where_the_plan_has_it(tmp_path: Path, rest: str, *, dropout: bool) -> None:
    assert fields(side(tmp_path, workload=f"{{kind: causal_lm, data: stdlib{rest}}}")).dropout is dropout


@pytest.mark.parametrize("workload", [LM, "{kind: graph_forecast, data: synthetic-stocks}"])
def test_every_field_that_is_compared_has_a_class(tmp_path: Path, workload: str) -> None:
    rest = "environment: {A: x}\nlabels: {a: b}\nmounts: [{source: src, target: /data/src}]\n"
    said = fields(side(tmp_path, rest, workload))
    assert len(said.values) > 80
    assert [name for name in said.values if "nobody knows" in classify_field(name, said).why] == []


def test_sizes_and_durations_are_shown_as_the_file_says_them(tmp_path: Path) -> None:
    before = side(
        tmp_path,
        "resources: {memory: 128MiB, shm: 32MiB, time_limit: 1h}\nprofile: {stream_buffer_memory: 64MiB}\n"
        "stop_grace: 30s\ncheckpoint: {every: 10m}\n",
    )
    after = side(
        tmp_path,
        "resources: {memory: 256MiB, shm: 64MiB, time_limit: 90m}\nprofile: {stream_buffer_memory: 1GiB}\n"
        "stop_grace: 2m\ncheckpoint: {every: 45s}\n",
    )
    said = {name: (old, new) for name, old, new, _, _ in change_rows(compare_revisions(before, after))}
    assert said == {
        "resources.memory": ("128MiB", "256MiB"),
        "resources.shm": ("32MiB", "64MiB"),
        "resources.time_limit": ("1h", "1h30m"),
        "profile.stream_buffer_memory": ("64MiB", "1GiB"),
        "stop_grace": ("30s", "2m"),
        "checkpoint.every": ("10m", "45s"),
    }
