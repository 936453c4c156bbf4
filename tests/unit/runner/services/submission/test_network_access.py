"""Right to a network."""

import os

import pytest

from runner.core.ports.users import User
from runner.files.job.model import JobFile
from runner.files.settings.model import Settings
from runner.services.submission.resolve import network_access, network_refusal

STAFF = 4711
ANN = User(4321, STAFF, (STAFF,), "ann")
ROOT = User(0, 0, (0,), "root")


def job(network: str | None = None, priority_class: str = "normal") -> JobFile:
    return JobFile.model_validate(
        {
            "name": "x",
            "workload": {"kind": "program", "command": ["true"]},
            "network": network,
            "queue": {"priority_class": priority_class},
        }
    )


def settings(**network: object) -> Settings:
    return Settings.model_validate({"network": network})


@pytest.fixture
def of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("of_root")
def test_a_shared_daemon_gives_no_network_and_says_who_decides() -> None:
    assert network_access(settings(), ANN, job()) == "none"
    assert network_refusal(settings(), ANN, job()) is None
    assert network_refusal(settings(), ANN, job("outbound")) == (
        "network: outbound is not yours (users none; groups none; classes none)"
        "; the operator decides (network.outbound in the settings)"
    )
    assert network_refusal(settings(), ROOT, job("outbound")) is None
    assert network_access(settings(), ROOT, job("outbound")) == "outbound"


@pytest.mark.usefixtures("of_root")
@pytest.mark.parametrize("who", [{"users": ["ann"]}, {"groups": [str(STAFF)]}, {"classes": ["normal"]}])
def test_the_operator_names_users_groups_or_classes(who: dict[str, list[str]]) -> None:
    known = settings(outbound=who)
    assert network_refusal(known, ANN, job("outbound")) is None
    assert network_access(known, ANN, job("outbound")) == "outbound"
    assert network_access(known, ANN, job()) == "none"


@pytest.mark.usefixtures("of_root")
def test_who_may_not_have_it_gets_none_by_default_and_is_not_refused() -> None:
    known = settings(default="outbound", outbound={"users": ["bob"]})
    assert network_access(known, ANN, job()) == "none"
    assert network_refusal(known, ANN, job()) is None
    assert network_refusal(known, ANN, job("outbound")) is not None
    assert network_access(settings(default="outbound"), ANN, job()) == "outbound"


@pytest.mark.usefixtures("of_root")
def test_a_job_may_have_less_than_the_default() -> None:
    assert network_access(settings(default="outbound"), ANN, job("none")) == "none"


def test_ones_own_daemon_gives_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ANN.uid)
    assert network_access(settings(), ANN, job()) == "outbound"
    assert network_access(settings(default="none"), ANN, job("outbound")) == "outbound"
    assert network_refusal(settings(default="none"), ANN, job("outbound")) is None
