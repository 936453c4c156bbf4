"""The network of a job, with real packets: what it reaches, and what stays closed."""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from runner.adapters.docker.connection import EngineConnection
from runner.adapters.docker.outbound import BridgeNetwork, OutboundSettings
from runner.adapters.host.firewall import Firewall, FirewallProblem, nft
from runner.base.errors import Refused, Unavailable
from runner.cli.daemon import unit
from runner.files.settings.model import Settings
from runner.server.network import watch_network
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.host.outside import (
    METADATA,
    METADATA_6,
    NAME,
    Outside,
    host_addresses,
    may_make_namespaces,
    outside,
)
from tests.fakes.workloads.counter_image import counter_image

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not may_make_namespaces(), reason="only root may make network namespaces"),
]

TRY = """
import json, socket, sys
for text in sys.argv[1:]:
    host, _, port = text.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
        print("reached", text, flush=True)
    except OSError as error:
        print("closed", text, error, flush=True)
"""

LISTEN = """
import socket
server = socket.create_server(("0.0.0.0", 7070))
print("listens at", socket.gethostbyname(socket.gethostname()), flush=True)
while True:
    server.accept()[0].close()
"""


@pytest.fixture(scope="module")
def beyond() -> Iterator[Outside]:
    with outside(7) as made:
        yield made


@pytest.fixture(scope="module")
def counter(engine: str, base_image: str) -> Iterator[str]:
    with counter_image(engine, base_image) as made:
        yield made


@contextmanager
def host_service() -> Iterator[int]:
    """A service of this host on all its addresses; the port is returned."""
    server = socket.create_server(("0.0.0.0", 0))  # noqa: S104  all addresses of this host

    def serve() -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with host_service() as made:
        yield made


@pytest.fixture(scope="module")
def daemon(counter: str, beyond: Outside) -> Iterator[Service]:
    network = {"outbound": {"classes": ["normal"]}, "dns": [beyond.address], "closed": ["198.51.100.0/24"]}
    with service(executor="docker", allowed_images={"counter": counter}, network=network) as made:
        yield made.start()
        made.client.stop()
        until(lambda: made.pid() is None, "the daemon is gone")
        made._reap()


def program(daemon: Service, name: str, *command: str, **fields: Any) -> Path:
    return daemon.file(
        name,
        workload={"kind": "program", "command": list(command)},
        image="counter",
        retry={"max_attempts": 1},
        **fields,
    )


def reached(daemon: Service, name: str, *targets: str, network: str = "outbound") -> dict[str, bool]:
    """Return the targets that a job has reached."""
    job_id = daemon.submit(program(daemon, name, "python3", "-c", TRY, *targets, network=network))
    job = daemon.ends(job_id)
    assert job["outcome"] == "succeeded", (daemon.told(job_id), daemon.log(job_id))
    found = re.findall(r"^(reached|closed) (\S+)", daemon.log(job_id), re.MULTILINE)
    assert [target for _, target in found] == list(targets), daemon.log(job_id)
    return {target: word == "reached" for word, target in found}


def connects(address: str, port: int) -> bool:
    with closing(socket.create_connection((address, port), 3)):
        return True


def test_a_job_with_outbound_reaches_the_outside_by_address_and_by_name(
    daemon: Service, beyond: Outside
) -> None:
    targets = [f"{beyond.address}:80", f"{NAME}:80"]
    assert reached(daemon, "out", *targets) == dict.fromkeys(targets, True)


def test_a_job_with_outbound_reaches_nothing_of_this_host(
    daemon: Service, beyond: Outside, port: int
) -> None:
    addresses = host_addresses()
    assert {beyond.host, "127.0.0.1"} & set(addresses) == {beyond.host}
    assert all(connects(address, port) for address in [*addresses, "127.0.0.1"])
    inspected = until(lambda: _network(daemon), "the network exists")
    gateway = inspected["IPAM"]["Config"][0]["Gateway"]
    targets = [f"{address}:{port}" for address in {*addresses, gateway, "127.0.0.1"}]
    assert reached(daemon, "host", *targets) == dict.fromkeys(targets, False)


def test_a_job_with_outbound_reaches_no_metadata(daemon: Service) -> None:
    assert connects(METADATA, 80)
    assert connects(METADATA_6, 80)
    targets = [f"{METADATA}:80", f"{METADATA_6}:80"]
    assert reached(daemon, "metadata", *targets) == dict.fromkeys(targets, False)


def test_a_container_on_the_engines_own_network_reaches_what_is_closed_to_jobs(
    engine: str, counter: str, port: int, beyond: Outside
) -> None:
    """The stand-ins can be reached from containers: what closes them to jobs are the runner's rules."""
    with closing(docker.DockerClient(engine, version="auto")) as client:
        targets = [f"{METADATA}:80", f"{beyond.host}:{port}"]
        said = client.containers.run(counter, ["python3", "-c", TRY, *targets], remove=True).decode()
    assert said.count("reached") == len(targets), said


def test_a_job_reaches_no_other_container(daemon: Service, engine: str, counter: str) -> None:
    listener = daemon.submit(program(daemon, "listener", "python3", "-c", LISTEN, network="outbound"))
    until(lambda: "listens at" in daemon.log(listener), "the other job listens", more=daemon.log_tail)
    other_job = daemon.log(listener).split()[-1]
    with closing(docker.DockerClient(engine, version="auto")) as client:
        stranger = client.containers.run(
            counter, ["python3", "-c", LISTEN], detach=True, ports={"7070/tcp": None}
        )
        try:
            until(lambda: b"listens" in stranger.logs(), "the other container listens")
            stranger.reload()
            published = (stranger.ports["7070/tcp"] or [])[0]["HostPort"]
            address = next(iter(stranger.attrs["NetworkSettings"]["Networks"].values()))["IPAddress"]
            assert connects(address, 7070)
            assert connects(other_job, 7070)
            targets = [f"{other_job}:7070", f"{address}:7070"]
            targets += [f"{each}:{published}" for each in host_addresses()]
            assert reached(daemon, "others", *targets) == dict.fromkeys(targets, False)
        finally:
            stranger.remove(force=True)
    daemon.client.act(listener, "cancel", {})
    daemon.ends(listener)


def test_a_job_without_a_network_reaches_nothing(daemon: Service, beyond: Outside) -> None:
    target = f"{beyond.address}:80"
    assert reached(daemon, "none", target, network="none") == {target: False}
    job_id = daemon.submit(program(daemon, "default", "true"))
    assert daemon.ends(job_id)["network"] == {"access": "none", "holds": True, "problem": ""}


def test_rules_that_were_removed_are_set_again_before_the_next_launch(daemon: Service, port: int) -> None:
    reached(daemon, "before")
    table = f"runner_{daemon.instance}"
    nft("flush", "table", "inet", table)
    target = f"{host_addresses()[0]}:{port}"
    assert reached(daemon, "after", target) == {target: False}
    assert "169.254.0.0/16" in nft("list", "table", "inet", table)


def test_rules_that_are_removed_while_jobs_run_are_set_again(
    daemon: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.server.network.WATCH_S", 0.2)
    network = BridgeNetwork(OutboundSettings("feed0003", required=True), EngineConnection(daemon.engine, 30))
    try:
        watch_network(Settings(), network)
        network.prepare()
        nft("flush", "table", "inet", network.table)
        until(lambda: "169.254.0.0/16" in nft("list", "table", "inet", network.table), "they are set again")
    finally:
        network.close()
    with pytest.raises(Unavailable, match="the daemon is stopping"):
        network.prepare()


def test_a_daemon_that_may_set_no_rules_holds_the_job_and_says_why(counter: str) -> None:
    kept = [
        name.removeprefix("CAP_").lower()
        for line in re.findall(r"^CapabilityBoundingSet=(.*)$", unit("/opt/python3"), re.MULTILINE)
        for name in line.split()
    ]
    assert "net_admin" in kept
    kept.remove("net_admin")
    bounds = ",".join(["-all", *(f"+{name}" for name in kept)])
    with service(executor="docker", allowed_images={"counter": counter}) as made:
        made.state.mkdir()
        with (made.state / "daemon.log").open("wb") as log:
            command = ["setpriv", f"--bounding-set={bounds}", f"--inh-caps={bounds}", "--", *RUNNER, "serve"]
            serve = [*command, "--state-dir", str(made.state)]
            with subprocess.Popen(serve, env=made.environ, stdout=log, stderr=log) as child:
                until(lambda: made.socket.exists() and made._answers(), "it answers", more=made.log_tail)
                job_id = made.submit(program(made, "out", "true", network="outbound"), end="cancelled")
                made.reaches(job_id, "held")
                assert "nft: " in made.told(job_id)
                assert "the operator decides (network in the settings)" in made.told(job_id)
                made.client.act(job_id, "cancel", {})
                made.ends(job_id)
                made.client.stop()
                child.wait()
        with closing(docker.DockerClient(made.engine, version="auto")) as client:
            assert not client.networks.list(names=[f"runner-{made.instance}"])


def test_the_probe_reaches_this_host_where_no_rules_are(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = OutboundSettings("feed0001", required=True)
    network = BridgeNetwork(settings, EngineConnection(engine, 30))
    try:
        monkeypatch.setattr(Firewall, "enforce", lambda *_: True)
        with pytest.raises(Refused, match=r"a probe has reached .* in spite of the rules"):
            network.prepare()
        assert network.state().holds is False
        monkeypatch.undo()
        assert network.prepare() == "runner-feed0001"
        assert network.state().holds is True
        monkeypatch.setattr(Firewall, "enforce", _failing)
        open_network = BridgeNetwork(
            OutboundSettings("feed0001", required=False), EngineConnection(engine, 30)
        )
        assert open_network.prepare() == "runner-feed0001"
        assert open_network.state().problem == "no rules today"
    finally:
        monkeypatch.undo()
        network.close()
    assert f"table inet {network.table}" not in nft("list", "tables")


def test_a_network_of_this_name_that_somebody_else_has_made_is_refused(engine: str) -> None:
    network = BridgeNetwork(OutboundSettings("feed0002", required=True), EngineConnection(engine, 30))
    with closing(docker.DockerClient(engine, version="auto")) as client:
        other = client.networks.create(network.name, driver="bridge")
        try:
            with pytest.raises(Refused, match="remove it: docker network rm runner-feed0002"):
                network.prepare()
        finally:
            other.remove()


def _failing(*_: object) -> bool:
    raise FirewallProblem("no rules today")


def _network(daemon: Service) -> dict[str, Any] | None:
    with closing(docker.DockerClient(daemon.engine, version="auto")) as client:
        listed = client.networks.list(names=[f"runner-{daemon.instance}"])
        return dict(listed[0].attrs) if listed else None
