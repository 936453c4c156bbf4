import json
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from runner.cli.main import cli
from runner.core.policy.catalog import FACTS
from runner.files.policy.load import SHIPPED, load_named_policy, parse_policy
from tests.fakes.daemon.api import FakeApi, ended
from tests.unit.runner.core.policy.test_records import OOM, POLICY, journal

GOOD = "policy: 1\non_exit: [{name: other, when: {}, do: resume}]\n"
BAD = "policy: 1\nceilings: {atempts: 3}\non_exit: [{name: other, when: {}, do: resum}]\n"


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["policy", *arguments])


DEFAULT: Final = load_named_policy("default")
RULES: Final = len((*DEFAULT.on_exit, *DEFAULT.on_watch, *DEFAULT.on_change))


def test_a_good_policy_is_ok() -> None:
    Path("mine.yaml").write_text(GOOD)
    result = call("check", "mine.yaml", "default")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first.startswith("mine.yaml: ok, 1 rules, digest ")
    assert second.startswith(f"default: ok, {RULES} rules, digest ")


def test_every_problem_is_a_line_and_the_exit_code_is_2() -> None:
    Path("mine.yaml").write_text(BAD)
    result = call("check", "mine.yaml", "default")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        'mine.yaml:2:12: ceilings.atempts: unknown field; did you mean "attempts"?',
        'mine.yaml:3:39: on_exit[0].do: there is no verb "resum"; did you mean "resume"?',
    ]
    assert result.stdout.startswith("default: ok")


def test_json_is_one_object_for_each_policy() -> None:
    Path("mine.yaml").write_text(BAD)
    good, bad = [
        json.loads(line) for line in call("check", "--json", "default", "mine.yaml").stdout.splitlines()
    ]
    assert (good["ok"], good["name"], good["rules"], good["problems"]) == (True, "default", RULES, [])
    assert (bad["ok"], len(bad["problems"])) == (False, 2)


def test_an_unknown_name_is_guessed_at_and_a_missing_file_told() -> None:
    assert (
        call("check", "defalt").stderr == 'defalt: there is no policy of this name; did you mean "default"?\n'
    )
    assert call("check", "a/b.yaml").stderr.startswith("a/b.yaml: no such file")


def test_a_file_comes_before_a_shipped_policy_of_its_name() -> None:
    Path("default").write_text(GOOD)
    assert call("check", "default").stdout.startswith("default: ok, 1 rules")


def test_a_policy_is_shown_with_its_comments() -> None:
    assert call("show").stdout == (SHIPPED / "default.yaml").read_text(encoding="utf-8")
    assert call("show", "strict").stdout.startswith("# For results")


def test_a_merged_policy_can_be_read_again() -> None:
    text = call("show", "--merged", "strict").stdout
    assert parse_policy(text.encode(), Path("strict.yaml")) == load_named_policy("strict")


def test_the_cases_of_the_shipped_policies_are_as_expected() -> None:
    path = SHIPPED / "default.cases.yaml"
    result = call("test", "default", str(path))
    assert result.exit_code == 0
    assert result.stdout.endswith("cases are as expected\n")


def test_a_case_that_differs_is_told_with_its_place() -> None:
    Path("mine.cases.yaml").write_text(
        "cases:\n  - {name: held, facts: {nan: true}, expect: {do: hold}}\n"
        "  - {name: fine, facts: {exit.class: success}, expect: {do: finish}}\n"
    )
    result = call("test", "default", "mine.cases.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "mine.cases.yaml:2:5: held: do should be hold, but is resume: resume from"
    )
    assert result.stdout == "mine.cases.yaml: 1 of 2 cases are as expected\n"
    told = json.loads(call("test", "--json", "default", "mine.cases.yaml").stdout)
    assert (told["cases"], told["failed"], len(told["problems"])) == (2, 1, 1)


def test_every_fact_is_listed() -> None:
    lines = call("facts").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == list(FACTS)
    assert all(len(line.split("\t")) == 5 for line in lines)
    first = json.loads(call("facts", "--json").stdout.splitlines()[0])
    assert (first["name"], first["moments"]) == ("exit.class", "E")


def test_the_schema_is_json() -> None:
    assert json.loads(call("schema").stdout)["title"] == "Policy file"


@pytest.fixture
def kept() -> str:
    lines = [json.dumps(one) for one in journal(POLICY, OOM, OOM, {"exit.class": "success"}, job="train")]
    Path("journal.jsonl").write_text("\n".join(lines) + "\n")
    return "journal.jsonl"


def test_a_decision_is_explained(kept: str) -> None:
    text = call("explain", "train", "1", "--journal", kept).stdout
    assert text.startswith(
        "train, attempt 1, on_exit: resume from the newest checkpoint with micro-batch halve"
    )
    assert "smaller  true     oom.device = true (wanted: true)" in text
    record = json.loads(call("explain", "train", "--journal", kept, "--json").stdout)
    assert (record["attempt"], record["verdict"]["do"]) == (3, "finish")


def test_a_decision_that_nobody_recorded_cannot_be_explained(kept: str) -> None:
    result = call("explain", "eval", "--journal", kept)
    said = 'job "eval": the journal has no decision about it; it has decisions about train\n'
    assert (result.exit_code, result.stderr) == (2, said)


def test_another_policy_is_asked_about_a_journal(kept: str) -> None:
    result = call("simulate", "strict", "--journal", kept)
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[:6] for row in rows] == [
        ["train", "1", "resume", "hold", "oom-train", "3600"],
        ["train", "2", "resume", "-", "-", "3600"],
        ["train", "3", "finish", "-", "-", "0"],
    ]
    assert result.stderr == "job train: 1 of 3 attempts, 1h of 2h of work lost\n"


def test_what_is_uncertain_is_marked(kept: str) -> None:
    Path("plain.yaml").write_text(GOOD)
    result = call("simulate", "plain.yaml", "--journal", kept)
    assert [line.split("\t")[3] for line in result.stdout.splitlines()] == ["resume", "resume ?", "resume ?"]
    assert result.stderr.endswith("; it would go on where the journal ends\n")
    told = json.loads(call("simulate", "plain.yaml", "--journal", kept, "--json").stdout)
    assert [turn["certain"] for turn in told["turns"]] == [True, False, False]


@pytest.fixture
def decided(api: FakeApi) -> list[dict[str, object]]:
    """Three decisions that the daemon keeps about a job called train."""
    job = api.add("train")
    found = [dict(each) for each in journal(POLICY, OOM, OOM, {"exit.class": "success"}, job=job["id"])]
    api.decisions[job["id"]] = found
    return found


def test_the_daemon_is_asked_for_decisions(decided: list[dict[str, object]]) -> None:
    assert call("explain", "train", "1").stdout.startswith("000001, attempt 1, on_exit: resume")
    assert call("explain", "000001").stdout.startswith("000001, attempt 3, on_exit: finish")
    assert json.loads(call("explain", "train", "2", "--json").stdout) == decided[1]
    missing = call("explain", "train", "7")
    assert (missing.exit_code, missing.stderr) == (
        2,
        'job "000001": no decision about attempt 7; there are 1, 2, 3\n',
    )


def test_a_decision_that_cannot_be_read_is_told_beside_the_others(
    api: FakeApi, decided: list[dict[str, object]]
) -> None:
    row = "decisions: job_id=1, seq=2: is no JSON object"
    api.unreadable = [row]
    said = f"the store has a row that cannot be read, and is left out: {row}\n"
    told = call("journal", "train")
    assert (told.stderr, len(told.stdout.splitlines())) == (said, len(decided))
    told = call("explain", "train", "1")
    assert (told.exit_code, told.stderr) == (0, said)


def test_without_an_end_nothing_has_been_decided(api: FakeApi) -> None:
    api.add("train")
    result = call("explain", "train")
    assert (result.exit_code, result.stderr) == (
        2,
        "train: nothing has been decided yet; no attempt of it has ended\n",
    )


def test_what_ended_before_it_ran_awaits_no_decision(api: FakeApi) -> None:
    api.add("train", **ended("cancelled", "cancelled by ada"), attempt=0)
    result = call("explain", "train")
    assert (result.exit_code, result.stderr) == (
        2,
        "train: ended without having run: cancelled by ada; there was nothing to decide; see runner events\n",
    )


def test_what_was_decided_is_a_journal_for_another_policy(
    api: FakeApi, decided: list[dict[str, object]]
) -> None:
    later = api.add("other")["id"]
    lines = call("journal").stdout
    assert [json.loads(line) for line in lines.splitlines()] == decided
    api.decisions[later] = [{**decided[0], "job": later, "at": "2000-01-01T00:00:00+00:00"}]
    assert [json.loads(line)["job"] for line in call("journal").stdout.splitlines()][:2] == [later, "000001"]
    del api.decisions[later]
    assert call("journal", "train").stdout == lines
    assert call("journal", "other").stdout == ""
    Path("journal.jsonl").write_text(lines)
    simulated = call("simulate", "strict", "--journal", "journal.jsonl")
    assert (simulated.exit_code, simulated.stdout.split("\t")[2:5]) == (0, ["resume", "hold", "oom-train"])


def test_a_journal_can_come_from_standard_input() -> None:
    kept = "".join(json.dumps(each) + "\n" for each in journal(POLICY, OOM, OOM, job="7"))
    for words in (["explain", "7"], ["simulate", "default"]):
        result = CliRunner().invoke(cli, ["policy", *words, "--journal", "-"], input=kept)
        assert (result.exit_code, bool(result.stdout)) == (0, True)
    wrong = CliRunner().invoke(cli, ["policy", "explain", "7", "--journal", "-"], input=b"\xff")
    assert (wrong.exit_code, wrong.stderr) == (2, "-: is not UTF-8 text\n")
