from typing import Any

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.integration.process.runner.cli.test_terminal import seen

H = 3600.0


def a_use(who: str = "ada", **facts: object) -> dict[str, Any]:
    known = {"who": who, "attempts": 3, "device_s": 12 * H, "cpu_s": 96 * H, "share": 0.75}
    known |= {"gave_way": 0, "gave_way_cost_s": 0.0, "preferred": 0, "spared_wait_s": 0.0}
    return {**known, "efficiency": 0.91, "utilisation": None, **facts}


def an_answer(*uses: dict[str, Any], **facts: object) -> dict[str, Any]:
    return {
        "since": "2030-01-01T00:00:00.000Z", "until": "2030-01-08T00:00:00.000Z", "by": "user",
        "uses": list(uses), "total": a_use("", device_s=16 * H, utilisation=0.5, share=1.0),
        "there": {"device_s": 64 * H, "cpu_s": 640 * H}, "switching_budget": 0.03,
    } | facts  # fmt: skip


def test_a_terminal_gets_a_table_with_all_together_at_its_end(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    api.answers["usage"] = an_answer(a_use(), a_use("bob", device_s=4 * H))
    head, ada, bob, whole, _, last = seen("usage").splitlines()
    assert " ".join(head.split()) == "USER DEVICE HOURS CPU HOURS SHARE EFFICIENCY UTILISATION ATTEMPTS"
    assert ada.split() == ["ada", "12.0", "96.0", "75%", "91%", "-", "3"]
    assert bob.split()[:2] == ["bob", "4.0"]
    assert whole.split() == ["all", "16.0", "96.0", "100%", "91%", "50%", "3"]
    assert last == "16.0 of 64 device hours were allocated (25%)"


def test_where_jobs_have_given_way_the_table_says_what_it_cost_and_spared(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    total = a_use("", gave_way=3, gave_way_cost_s=0.25 * H, preferred=3, spared_wait_s=6 * H)
    ada_use = a_use(gave_way=3, gave_way_cost_s=0.25 * H)
    bob_use = a_use("bob", preferred=3, spared_wait_s=6 * H)
    api.answers["usage"] = an_answer(ada_use, bob_use, total=total)
    head, ada, bob, *_ = seen("usage").splitlines()
    assert head.split()[-5:] == ["PREEMPTED", "COST", "PREFERRED", "SPARED", "WAIT"]
    assert ada.split()[-4:] == ["3", "0.25", "0", "0.0"]
    assert bob.split()[-4:] == ["0", "0.00", "3", "6.0"]
