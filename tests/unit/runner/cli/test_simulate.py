import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runner.cli import simulate as command
from runner.cli.main import cli
from runner.cli.simulate import COLUMNS, ORDERS, USER_COLUMNS
from runner.core.scheduler.config import SchedulingOrder
from runner.services.simulation.trace import read


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *arguments])


MADE = ("--synthetic", "1", "--jobs", "60", "--hosts", "1x8", "--tick", "300")


def test_the_orders_are_those_there_are() -> None:
    assert [each.replace("oracle", "srpt") for each in ORDERS] == list(SchedulingOrder)


def test_all_orders_are_compared_a_line_for_each() -> None:
    result = call(*MADE)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows] == [*ORDERS, "fifo, no backfill"]
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_one_order_can_be_asked_for_and_backfill_forbidden() -> None:
    assert call(*MADE, "--order", "sjf").stdout.startswith("sjf\t")
    rows = call(*MADE, "--no-backfill").stdout.splitlines()
    orders = [f"{order}, no backfill" for order in ORDERS if order != "oracle"]
    assert [row.split("\t")[0] for row in rows] == [*orders, "oracle"]


def test_users_have_lines_of_their_own() -> None:
    rows = [line.split("\t") for line in call(*MADE, "--order", "fair", "--users").stdout.splitlines()]
    assert all(len(row) == len(USER_COLUMNS) for row in rows)
    assert sum(int(row[2]) for row in rows) == 60


def test_json_is_one_object_for_each_order() -> None:
    found = [json.loads(line) for line in call(*MADE, "--json").stdout.splitlines()]
    assert [each["backfill"] for each in found] == [True] * len(ORDERS) + [False]
    assert {each["jobs"] for each in found} == {60}


@pytest.mark.parametrize(("more", "columns"), [((), COLUMNS), (("--users",), USER_COLUMNS)])
def test_on_a_terminal_the_columns_have_heads(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    monkeypatch.setattr(command, "on_terminal", lambda: True)
    assert call(*MADE, "--order", "fair", *more).stdout.splitlines()[0].split("\t") == list(columns)


def test_a_trace_can_be_saved_and_played_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    made = call(*MADE, "--order", "fair", "--save", str(path)).stdout
    assert len(read(path)) == 60
    assert call("--trace", str(path), "--hosts", "1x8", "--order", "fair", "--tick", "300").stdout == made


def test_jobs_that_never_start_are_counted_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("job,user,submit_s,duration_s,limit_s,gpus,after\na,ada,0,9,1,1,\nb,ada,0,1,,1,a\n")
    result = call("--trace", str(path), "--order", "fair")
    assert result.stderr == "fair: 1 of 2 jobs never started\n"


@pytest.mark.parametrize("arguments", [(), ("--synthetic", "1", "--trace", "x")])
def test_exactly_one_trace_must_be_given(arguments: tuple[str, ...]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert "give either --trace FILE or --synthetic SEED" in result.stderr


def test_what_is_wrong_with_hosts_comes_as_an_error_of_the_house() -> None:
    result = call("--synthetic", "1", "--hosts", "lots")
    assert result.exit_code == 2
    assert '"lots": is not a number of hosts and devices' in result.stderr
