"""A job whose image needs a newer driver waits with the reason, on a real engine with a stand-in for NVML."""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.fakes.daemon.service import until
from tests.fakes.gpu.hosts import h100s
from tests.fakes.gpu.site import site

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
    pytest.mark.skipif(Path("/sys/module/nvidia").exists(), reason="there is a real driver"),
]

PROGRAM: dict[str, Any] = {
    "workload": {"kind": "program", "command": ["true"]},
    "accelerator": "cuda",
    "resources": {"cpus": 1, "memory": "256MiB", "gpus": 1},
}
NEEDED = (
    "no CUDA image is built: driver 550.54.14 is too old: the image's torch needs CUDA 13.0; update the"
    " driver to 580.65 or later, or make the lock for CUDA 12.6 (runner images lock cuda-12.6)"
)


def test_a_job_waits_for_a_newer_driver_and_no_attempt_is_charged(tmp_path: Path, engine: str) -> None:
    host = h100s(1)
    host.trouble = "driver 550.54.14 12040"
    with site(tmp_path, host, executor="docker", engine=engine) as made:
        daemon = made.daemon
        job = daemon.submit(daemon.file("needs-cuda-13", **PROGRAM), end="cancelled")
        why = until(
            lambda: said if "550.54.14" in (said := daemon.runner("why", job)) else "",
            "the reason is told",
            more=daemon.log_tail,
        )
        assert NEEDED in " ".join(why.split())
        shown = json.loads(daemon.runner("show", job, "--json"))
        assert (shown["state"], shown["attempts"]) == ("preparing", [])
        planned = daemon.answer("submit", "--dry-run", "--json", str(daemon.file("planned", **PROGRAM)))
        assert planned["devices"]["devices"][0]["model"] == "NVIDIA H100 80GB HBM3"
        assert planned["devices"]["problem"].startswith("not in the arguments: no GPU can be given")
        assert planned["engine"]["config"]["HostConfig"]["DeviceRequests"] == []


@pytest.fixture
def labelled(engine: str, base_image: str) -> Iterator[str]:
    """An image of the operator that says which CUDA its torch has, as those of NVIDIA do."""
    name = "runner-test:cuda-13"
    with closing(docker.DockerClient(engine, version="auto")) as client:
        text = f"FROM runner-base:bookworm\nENV CUDA_VERSION=13.0.1\nLABEL of={base_image}\n"
        client.images.build(fileobj=io.BytesIO(text.encode()), tag=name, rm=True)
        yield name
        client.images.remove(name)


def test_an_image_of_the_operator_is_compared_before_the_launch(
    tmp_path: Path, engine: str, labelled: str
) -> None:
    host = h100s(1)
    host.trouble = "driver 550.54.14 12040"
    settings: dict[str, Any] = {"gpu_injection": "hook", "allowed_images": {"lab": labelled}}
    with site(tmp_path, host, executor="docker", engine=engine, **settings) as made:
        daemon = made.daemon
        job = daemon.submit(daemon.file("lab", image="lab", **PROGRAM), end="cancelled")
        until(
            lambda: "not started: driver 550.54.14 is too old" in daemon.runner("why", job),
            "the reason is told",
            more=daemon.log_tail,
        )
        shown = json.loads(daemon.runner("show", job, "--json"))
        assert (shown["state"], len(shown["attempts"])) == ("starting", 1)
