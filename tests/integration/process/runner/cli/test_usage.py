from typing import Any

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.integration.process.runner.cli.test_terminal import seen

H = 3600.0


def a_use(who: str = "ada", **facts: object) -> dict[str, Any]:
    known = {"who": who, "attempts": 3, "device_s": 12 * H, "cpu_s": 96 * H, "share": 0.75}
    return {**known, "efficiency": 0.91, "utilisation": None, **facts}


def an_answer(*uses: dict[str, Any], **facts: object) -> dict[str, Any]:
    return {
        "since": "2030-01-01T00:00:00.000Z", "until": "2030-01-08T00:00:00.000Z", "by": "user",
        "uses": list(uses), "total": a_use("", device_s=16 * H, utilisation=0.5, share=1.0),
        "there": {"device_s": 64 * H, "cpu_s": 640 * H},
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
    assert last == "16.0 of 64 device hours were lent (25%)"
