"""The facts about an engine from its own words, and what is asked of it then."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.adapters.docker.engine import in_force, read_engine, report_engine
from runner.adapters.docker.hardening import HardeningSettings
from runner.core.doctor import EngineFacts

WANTED = HardeningSettings("store", apparmor="runner-job")
DOCKER: dict[str, Any] = {"Components": [{"Name": "Engine"}, {"Name": "containerd"}]}
PODMAN: dict[str, Any] = {"Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]}


@pytest.mark.parametrize(
    ("options", "version", "seen"),
    [
        (["name=apparmor", "name=seccomp,profile=default"], DOCKER, EngineFacts(apparmor=True)),
        (["name=userns"], DOCKER, EngineFacts(maps_users=True)),
        (["name=seccomp,profile=default", "name=rootless"], DOCKER, EngineFacts(rootless=True)),
        (["name=rootless"], PODMAN, EngineFacts(rootless=True, podman=True)),
        (None, {"Components": None}, EngineFacts()),
    ],
)
def test_what_an_engine_offers_is_read_from_its_own_words(
    options: list[str] | None, version: dict[str, Any], seen: EngineFacts
) -> None:
    assert read_engine({"SecurityOptions": options}, version) == seen


def test_a_profile_is_asked_for_where_the_host_has_apparmor_and_missed_aloud_elsewhere() -> None:
    with_it, without = EngineFacts(apparmor=True), EngineFacts()
    assert in_force(WANTED, with_it) == WANTED
    assert in_force(WANTED, without).apparmor is None
    with capture_logs() as log:
        report_engine(with_it, WANTED)
    assert [each["event"] for each in log] == ["engine.isolation"]
    with capture_logs() as log:
        report_engine(without, WANTED)
    assert [each["event"] for each in log] == ["engine.isolation", "engine.no_apparmor"]


def test_jobs_get_the_users_of_the_host_where_the_engine_maps_them_and_the_log_says_so() -> None:
    plain, maps = HardeningSettings("store"), EngineFacts(maps_users=True)
    assert in_force(plain, EngineFacts()).user_namespace == "engine"
    assert in_force(plain, maps).user_namespace == "host"
    with capture_logs() as log:
        report_engine(maps, plain)
    assert (log[-1]["event"], log[-1]["chosen"]) == ("engine.maps_users", "user_namespace: host")
    with capture_logs() as log:
        report_engine(maps, HardeningSettings("store", user_namespace="host"))
    assert len(log) == 1


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (EngineFacts(rootless=True), "rootless Docker"),
        (EngineFacts(podman=True), "Podman"),
        (EngineFacts(podman=True, rootless=True), "Podman"),
    ],
)
def test_an_engine_without_support_is_refused_in_one_line_with_the_next_step(
    engine: EngineFacts, name: str
) -> None:
    assert engine.refusal is not None
    assert engine.refusal.startswith(f"{name} is not supported: ")
    assert "executor: process" in engine.refusal
    assert "\n" not in engine.refusal


@pytest.mark.parametrize("engine", [EngineFacts(), EngineFacts(maps_users=True), EngineFacts("is down")])
def test_docker_of_root_is_supported_in_all_its_forms(engine: EngineFacts) -> None:
    assert engine.refusal is None
