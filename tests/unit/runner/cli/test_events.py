import json
from typing import Any

import pytest

from runner.client.client import Client
from tests.fakes.daemon.api import AT, FakeApi
from tests.unit.runner.cli.conftest import Invoke


def event(seq: int, job: str = "000001", text: str = "attempt 1 started") -> dict[str, Any]:
    return {"seq": seq, "job": job, "name": "train", "at": AT, "kind": "launched", "text": text}


def test_events_come_page_after_page_between_tabs(api: FakeApi, invoke: Invoke) -> None:
    api.events = [event(seq) for seq in (1, 2, 5, 8, 9)]
    lines = invoke("events").stdout.splitlines()
    assert lines[0] == f"1\t{AT}\t000001\ttrain\tlaunched\tattempt 1 started"
    assert [line.split("\t")[0] for line in lines] == ["1", "2", "5", "8", "9"]


def test_own_events_behind_many_of_others_are_printed(api: FakeApi, invoke: Invoke) -> None:
    api.secret.add("000009")
    api.events = [*(event(seq, job="000009") for seq in range(1, 6)), event(6)]
    assert invoke("events").stdout == f"6\t{AT}\t000001\ttrain\tlaunched\tattempt 1 started\n"


def test_events_of_one_job_after_a_number_as_json(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    api.events = [event(1), event(2, job="000002"), event(3, text="\x1b")]
    found = [
        json.loads(line) for line in invoke("events", "--json", "--after", "1", "train").stdout.splitlines()
    ]
    assert [one["seq"] for one in found] == [3]


def test_following_goes_on_until_it_is_interrupted(
    api: FakeApi, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        monkeypatch.setattr(Client, "events", interrupted)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    api.turns["events"].extend([lambda: None, lambda: api.events.append(event(1)), interrupt])
    result = invoke("events", "-f")
    assert (result.exit_code, result.stdout.count("\n"), result.stderr) == (130, 1, "interrupted\n")
