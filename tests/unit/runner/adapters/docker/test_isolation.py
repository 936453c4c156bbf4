"""What an engine says that it offers, and what is asked of it then."""

import pytest
from structlog.testing import capture_logs

from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.docker.isolation import EngineIsolation, read_isolation, report_isolation

WANTED = HardeningSettings("store", apparmor="runner-job")


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (["name=apparmor", "name=seccomp,profile=default"], EngineIsolation(True, False, False)),  # noqa: FBT003
        (["name=userns", "name=rootless"], EngineIsolation(False, True, True)),  # noqa: FBT003
        (None, EngineIsolation(False, False, False)),  # noqa: FBT003
    ],
)
def test_what_an_engine_offers_is_read_from_its_own_words(
    options: list[str] | None, seen: EngineIsolation
) -> None:
    assert read_isolation({"SecurityOptions": options}) == seen


def test_a_profile_is_asked_for_where_the_host_has_apparmor_and_missed_aloud_elsewhere() -> None:
    with_it = EngineIsolation(apparmor=True, user_namespaces=False, rootless=False)
    without = EngineIsolation(apparmor=False, user_namespaces=False, rootless=False)
    assert with_it.in_force(WANTED) == WANTED
    assert without.in_force(WANTED).apparmor is None
    with capture_logs() as log:
        report_isolation(with_it, WANTED)
    assert [each["event"] for each in log] == ["engine.isolation"]
    with capture_logs() as log:
        report_isolation(without, WANTED)
    assert [each["event"] for each in log] == ["engine.isolation", "engine.no_apparmor"]


def test_a_mapping_of_users_that_keeps_jobs_from_their_directories_is_said_with_the_setting() -> None:
    maps = EngineIsolation(apparmor=False, user_namespaces=True, rootless=False)
    with capture_logs() as log:
        report_isolation(maps, HardeningSettings("store"))
    assert "user_namespace: host" in log[-1]["remedy"]
    with capture_logs() as log:
        report_isolation(maps, HardeningSettings("store", user_namespace="host"))
    assert len(log) == 1
