"""Devices of a stand-in host lent to real containers: never one of them twice, whatever is killed."""

import io
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import engine_url
from tests.fakes.daemon.service import until
from tests.fakes.gpu.engine import CDI
from tests.fakes.gpu.floor import IDLE_BYTES, Floor, floor
from tests.fakes.gpu.site import stranger
from tests.fakes.patience import patience
from tests.fakes.workloads.counter_image import counter_image, docker_client

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


# --- What is inside -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counter(engine: str, base_image: str) -> Iterator[str]:
    """The id of an image with a shell."""
    with counter_image(engine, base_image) as image:
        yield image


@pytest.fixture(scope="module")
def greedy(engine: str, counter: str) -> Iterator[str]:
    """The id of an image that says it wants every GPU."""
    dockerfile = f"FROM {counter}\nENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all\n"
    with docker_client(engine) as client:
        image, _ = client.images.build(fileobj=io.BytesIO(dockerfile.encode()), rm=True)
        yield str(image.id)
        client.images.remove(str(image.id), force=True)


@pytest.mark.parametrize("way", ["cdi", "hook"])
def test_two_jobs_at_a_time_have_devices_of_their_own_whatever_their_image_says(
    tmp_path: Path, greedy: str, way: str
) -> None:
    with floor(tmp_path, greedy, gpu_injection=way) as here:
        jobs = [here.job("left"), here.job("right")]
        held = {job_id: set(here.runs(job_id)) for job_id in jobs}
        assert [len(each) for each in held.values()] == [2, 2]
        assert set.union(*held.values()) == {card.uuid for card in here.host.cards}
        here.assert_lent_once(*jobs)
        for job_id in jobs:
            found, uuids = here.container(job_id), sorted(held[job_id])
            name = found["Name"].removeprefix("/")
            environment = dict(each.split("=", 1) for each in found["Config"]["Env"])
            visible = environment["NVIDIA_VISIBLE_DEVICES"]
            assert sorted(here.gpu.given[name]) == uuids
            if way == "cdi":
                [request] = here.gpu.asked[name]["DeviceRequests"]
                assert sorted(request["DeviceIDs"]) == [f"{CDI}{uuid}" for uuid in uuids]
                assert (here.gpu.asked[name]["Runtime"], visible) == ("runc", "void")
            else:
                assert (here.gpu.asked[name]["Runtime"], sorted(visible.split(","))) == ("nvidia", uuids)
                assert here.gpu.asked[name]["DeviceRequests"] == []
            assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
            said = here.daemon.log(job_id).splitlines()
            nodes = {line.removeprefix("node ") for line in said if line.startswith("node ")}
            assert nodes == {here.gpu.node(uuid) for uuid in uuids}
            assert [line for line in said if "VISIBLE" in line] == [f"says NVIDIA_VISIBLE_DEVICES={visible}"]
        here.cancel(*jobs)
        here.assert_all_free()


WIDER = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "NVIDIA_DRIVER_CAPABILITIES": "all",
    "NVIDIA_MIG_CONFIG_DEVICES": "all",
}


def test_a_job_without_devices_gets_none_and_no_variable_of_a_job_file_asks_for_more(
    tmp_path: Path, greedy: str
) -> None:
    with floor(tmp_path, greedy, gpu_injection="hook") as here:
        file = here.daemon.file(
            "wider",
            workload={"kind": "program", "command": ["true"]},
            image="counter",
            accelerator="cuda",
            resources={"cpus": 1, "memory": "256MiB", "gpus": 1},
            environment=WIDER,
        )
        said = here.daemon.runner("submit", str(file), code=2)
        assert [name for name in WIDER if f"environment.{name}" not in said] == []
        none = here.job("none", 0, accelerator="cpu")
        here.runs(none)
        [start] = here.gpu.starts
        assert start.uuids == ()
        assert here.nodes(here.container(none)) == []
        assert "says NVIDIA_VISIBLE_DEVICES=void" in here.daemon.log(none)
        here.cancel(none)
        here.assert_all_free()


@pytest.mark.parametrize(
    ("way", "why"), [("cdi", 'could not select device driver "cdi"'), ("hook", "nvidia")]
)
def test_a_host_that_cannot_give_gpus_to_containers_costs_the_job_no_attempt(
    tmp_path: Path, counter: str, engine: str, way: str, why: str
) -> None:
    with docker_client(engine) as client:
        able = client.info()
    if able.get("CDISpecDirs") or "nvidia" in able["Runtimes"]:
        pytest.skip("this engine can")
    with floor(tmp_path, counter, 2, gpu_injection=way, engine=engine) as here:
        job_id = here.job("waits")
        here.reaches("GPU-0", "quarantined")
        here.reaches("GPU-1", "quarantined")
        until(lambda: why in here.daemon.job(job_id)["why"], "the job tells the engine's words")
        assert here.daemon.job(job_id)["state"] == "queued"
        assert here.booked() == {}
        here.cancel(job_id)
        until(lambda: not here.daemon.containers(), "no container is left")


# --- Kills ----------------------------------------------------------------------------------------------


def test_no_kill_of_daemon_container_or_client_lends_a_device_twice_or_loses_one(
    tmp_path: Path, counter: str
) -> None:
    with floor(tmp_path, counter) as here:
        left, right = here.job("left"), here.job("right")
        had = {job_id: here.runs(job_id) for job_id in (left, right)}
        for job_id in (left, right):
            for uuid in had[job_id]:
                here.use(uuid, here.daemon.program_pid(job_id))

        with here.daemon.typing("logs", "-f", left) as follows:
            until(lambda: follows.stdout.readline() if follows.stdout else "", "it follows")
            follows.send_signal(signal.SIGKILL)
        here.assert_lent_once(left, right)

        here.daemon.kill()
        here.daemon.start()
        third = here.job("third")
        assert {job_id: here.runs(job_id) for job_id in (left, right)} == had
        here.assert_lent_once(left, right)

        with docker_client(here.daemon.engine) as client:
            client.api.kill(here.container(left)["Id"])
        for uuid in had[left]:
            here.linger(uuid)
        for uuid in had[left]:
            here.lingers(uuid)
        here.assert_lent_once(right)
        assert len(here.gpu.starts) == 2

        for uuid in had[left]:
            here.linger(uuid, IDLE_BYTES)
        next_one = until(
            lambda: next((x for x in (left, third) if here.daemon.state_of(x) == "running"), None),
            "what is clean is lent again",
        )
        assert set(here.runs(next_one, 2 if next_one == left else 1)) == set(had[left])
        here.assert_lent_once(right, next_one)
        for uuid in had[right]:
            here.linger(uuid, IDLE_BYTES)
        here.cancel(third if next_one == left else left)

        here.daemon.remove_container(right)
        assert set(here.runs(right, 2)) == set(had[right])
        here.assert_lent_once(right, next_one)
        here.cancel(right, next_one)
        here.assert_all_free()


MOMENTS = [
    ("before", "/containers/create"),
    ("after", "/containers/create"),
    ("before", "/start"),
    ("after", "/start"),
    ("before", "DELETE "),
    ("after", "DELETE "),
]


@pytest.fixture(scope="module")
def pair(counter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Floor]:
    """A daemon with two GPUs, both free."""
    with floor(tmp_path_factory.mktemp("pair"), counter, 2) as here:
        yield here


@pytest.mark.parametrize(("where", "asked"), MOMENTS)
def test_a_daemon_killed_around_the_lending_lends_nothing_twice_and_loses_nothing(
    pair: Floor, where: str, asked: str
) -> None:
    here, before = pair, len(pair.gpu.starts)
    stop = here.proxy.stop_before if where == "before" else here.proxy.stop_after
    ends = asked == "DELETE "
    caught = stop(asked)
    first = here.job("first")
    until(lambda: first in here.booked(), "the first job has devices")
    second = here.job("second")
    if ends:
        for uuid in here.runs(first):
            here.linger(uuid)
        here.cancel(first)
    assert caught.wait(patience())
    assert (first in here.booked()) is not ends
    here.daemon.kill()
    here.daemon.start()
    if ends:
        for card in here.host.cards:
            here.lingers(card.uuid)
        assert here.daemon.state_of(second) == "queued"
        assert len(here.gpu.starts) == before + 1
        for card in here.host.cards:
            here.linger(card.uuid, IDLE_BYTES)
    else:
        here.runs(first)
        assert here.daemon.state_of(second) == "queued"
        here.assert_lent_once(first)
        here.cancel(first)
    here.runs(second)
    here.assert_lent_once(second)
    here.cancel(second)
    here.assert_all_free()
    assert [each.name.split("-")[-2] for each in here.gpu.starts[before:]] == [first, second]


# --- Whose processes are on them ------------------------------------------------------------------------


def test_the_processes_of_a_container_are_its_jobs_and_strangers_are_named(
    tmp_path: Path, counter: str
) -> None:
    with floor(tmp_path, counter) as here, stranger() as pid, foreign_container(counter) as outside:
        job_id, neighbour = here.job("ours", 2), here.job("neighbour", 1)
        [first, second], [third] = here.runs(job_id), here.runs(neighbour)
        [last] = [card.uuid for card in here.host.cards if card.uuid not in {first, second, third}]
        own = here.pids(job_id)
        assert len(own) == 4  # init, its shell, the program, and what has a session and no parent of its own
        group = Path(f"/proc/{own[-1]}/cgroup").read_text()
        assert here.container(job_id)["Id"] in group
        here.use(first, *own)
        here.use(second, own[-1], pid)
        here.use(third, here.daemon.program_pid(job_id), here.daemon.program_pid(neighbour))
        here.use(last, outside)

        told = f"{here.label(second)} is also used by a foreign process (pid {pid}, uid 65534, "
        until(lambda: told in here.daemon.told(job_id), "an alarm is raised", more=here.daemon.log_tail)
        [alarm] = alarms = here.alarms(job_id)
        assert alarm.endswith("sleep)")
        assert {(each["pid"], each["job"]) for each in here.on(first)} == {(each, job_id) for each in own}
        theirs = f"is also used by job {job_id} (pid {here.daemon.program_pid(job_id)}"
        until(lambda: theirs in here.daemon.told(neighbour), "the neighbour hears of it")

        # while the engine does not answer nobody is accused, and nobody is forgotten
        here.proxy.shut()
        late = here.enter(job_id, "sleep", "602")
        here.use(first, *own, late)
        until(lambda: late in {each["pid"] for each in here.on(first)}, "it is seen")
        assert {(each["job"], each["foreign"]) for each in here.on(first)} == {(job_id, False), (None, False)}
        here.proxy.resume()
        until(lambda: {each["job"] for each in here.on(first)} == {job_id}, "it is known again")
        assert here.alarms(job_id) == alarms

        foreign = here.reaches(here.label(last), "foreign")["reason"]
        assert f"pid {outside}, uid 4321" in foreign
        waits = here.job("waits", 1)
        why = until(
            lambda: _names(here, waits, f"pid {outside}"), "it is told why", more=here.daemon.log_tail
        )
        assert f"{here.label(last)} used by a foreign process (pid {outside}, uid 4321, sleep)" in why
        here.use(last)
        assert here.runs(waits) == (last,)
        for card in here.host.cards:
            here.use(card.uuid)
        here.cancel(job_id, neighbour, waits)
        here.assert_all_free()


def _names(here: Floor, job_id: str, words: str) -> str | None:
    said = here.daemon.runner("why", job_id)
    return said if words in said else None


@contextmanager
def foreign_container(image: str) -> Iterator[int]:
    """A container that somebody started by hand; its process on this host."""
    with docker_client(engine_url()) as client:
        command = ["/bin/sh", "-c", "exec sleep 600"]
        made = client.containers.create(image, command, user="4321:4321", network_mode="none")
        try:
            made.start()
            made.reload()
            yield int(made.attrs["State"]["Pid"])
        finally:
            made.remove(force=True)
