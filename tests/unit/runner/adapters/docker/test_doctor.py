"""Device of the container of a trial, and the meaning of its report."""

from pathlib import Path
from typing import Any

import pytest
from docker import APIClient
from docker.errors import APIError
from requests import ReadTimeout

from runner.adapters.docker import doctor
from runner.adapters.docker.doctor import TriedDevice, _run_in, device_arguments
from runner.adapters.launch import INSIDE
from runner.base.errors import Unavailable
from runner.core.doctor import Verdict

SEEN = {"torch": "2.13.0", "matmul_s": 0.2, "bf16": True, "compile_s": 9.1, "device": "NVIDIA H100"}


def test_without_a_device_the_container_sees_none() -> None:
    host, variables = device_arguments(None)
    assert (host["cap_drop"], host["network_mode"]) == (["ALL"], "none")
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_cdi_and_the_hook_name_the_device() -> None:
    host, variables = device_arguments(TriedDevice("GPU-1:0", "cdi", "MIG-a"))
    assert host["device_requests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=MIG-a"]}]
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    host, variables = device_arguments(TriedDevice("GPU-1:0", "hook", "MIG-a"))
    assert (host["runtime"], variables["NVIDIA_VISIBLE_DEVICES"]) == ("nvidia", "MIG-a")


def test_nodes_of_amd_come_with_their_groups(tmp_path: Path) -> None:
    nodes = (tmp_path / "kfd", tmp_path / "renderD128")
    for node in nodes:
        node.touch()
    host, _ = device_arguments(TriedDevice("renderD128", nodes=nodes))
    assert host["devices"] == [f"{node}:{node}:rw" for node in nodes]
    assert host["group_add"] == [str(nodes[0].stat().st_gid)]


@pytest.mark.parametrize(
    ("changes", "verdict", "ends"),
    [
        ({}, Verdict.OK, "NVIDIA H100, 0.2 s for a first product, 9.1 s to compile a line"),
        ({"bf16": False}, Verdict.WARNING, "bfloat16 does not work"),
        ({"compile_error": "no gcc"}, Verdict.WARNING, "torch.compile fails: no gcc"),
    ],
)
def test_a_report_is_read(changes: dict[str, object], verdict: Verdict, ends: str) -> None:
    finding = doctor._verdict("image", {**SEEN, **changes})
    assert finding.verdict is verdict
    assert finding.fact.endswith(ends)
    assert bool(finding.advice) is (verdict is not Verdict.OK)


def test_a_container_that_does_not_end_is_not_an_engine_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hang(*_: object, **__: object) -> None:
        raise ReadTimeout("read timed out")

    monkeypatch.setattr(APIClient, "wait", hang)
    client = APIClient("tcp://127.0.0.1:9", version="1.41")  # connects to nothing before it is asked
    with client, pytest.raises(Unavailable, match=r"^has not ended within 300 s; the device hangs, or"):
        doctor._wait(client, "c1")


class Trying:
    """An engine with an image that sets what hooks read; it notes what containers are created with."""

    def __init__(self) -> None:
        self.created: dict[str, Any] = {}

    def inspect_image(self, _image: str) -> dict[str, Any]:
        return {"Config": {"Env": ["LD_PRELOAD=/evil.so", "NVIDIA_VISIBLE_DEVICES=all", "PATH=/bin"]}}

    def create_host_config(self, **host: object) -> dict[str, object]:
        return host

    def create_container(self, _image: str, **created: object) -> dict[str, str]:
        self.created = created
        raise APIError("it has been asked for")


def test_hooks_see_nothing_of_an_image_that_is_tried() -> None:
    client = Trying()
    engine: Any = client
    with pytest.raises(APIError, match="it has been asked for"):
        _run_in(engine, "lab:1", "cuda", TriedDevice("GPU-1:0", "hook", "MIG-a"))
    variables = client.created["environment"]
    assert (variables["LD_PRELOAD"], variables["NVIDIA_VISIBLE_DEVICES"]) == ("", "MIG-a")
    assert variables["RUNNER_IMAGE_LD_PRELOAD"] == "/evil.so"  # for the program alone
    assert client.created["entrypoint"][:3] == ["/bin/sh", "-c", INSIDE]
