"""Right to a priority class."""

import os

import pytest

from runner.core.ports.users import User
from runner.files.settings.model import Settings
from runner.services.submission.resolve import class_refusal

STAFF = 4711
ANN = User(4321, STAFF, (STAFF,), "ann")
ROOT = User(0, 0, (0,), "root")
URGENT = {"rank": 20, "preempts": True}


def settings(**access: object) -> Settings:
    urgent = {**URGENT, **access}
    return Settings.model_validate({"queue": {"classes": {"normal": {"rank": 10}, "urgent": urgent}}})


@pytest.fixture
def of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("of_root")
def test_a_class_that_preempts_is_closed_on_a_shared_daemon_until_somebody_is_named() -> None:
    assert class_refusal(settings(), ANN, "urgent") == (
        "class urgent preempts and is for root; the operator decides (queue.classes.urgent.users)"
    )
    assert class_refusal(settings(), ANN, "normal") is None
    assert class_refusal(settings(), ROOT, "urgent") is None
    assert class_refusal(settings(users=["ann"]), ANN, "urgent") is None
    assert class_refusal(settings(groups=[str(STAFF)]), ANN, "urgent") is None


@pytest.mark.usefixtures("of_root")
def test_who_is_not_named_is_refused_and_told_who_decides() -> None:
    assert class_refusal(settings(users=["bob", "eve"]), ANN, "urgent") == (
        "class urgent is not yours (users bob, eve; groups none); the operator decides (queue.classes.urgent)"
    )
    assert class_refusal(settings(users=[], groups=[]), ANN, "urgent") is not None


def test_ones_own_daemon_leaves_all_classes_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert class_refusal(settings(), ANN, "urgent") is None


@pytest.mark.usefixtures("of_root")
def test_names_that_do_not_exist_are_warned_of() -> None:
    found = "\n".join(settings(users=["no-such-user"], groups=["no-such-group"]).strangers())
    assert "queue.classes.urgent.users: this machine has no user" in found
    assert "queue.classes.urgent.groups: this machine has no group" in found
