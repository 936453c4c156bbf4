"""The program that ``runner doctor`` starts in an image, with a device or without."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docker import APIClient
from requests import ConnectionError, ReadTimeout  # noqa: A004  as the engine's client raises them

from runner.adapters.docker.connection import EngineConnection, engine_errors
from runner.adapters.docker.hardening import neutralised
from runner.adapters.launch import inside_script
from runner.base.errors import Unavailable
from runner.core.doctor import Finding, Injection, Verdict

PROBE: Final = """
import json, sys, time
import torch
device = torch.device(sys.argv[1])
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
began = time.monotonic()
one = torch.randn(1024, 1024, device=device)
assert torch.isfinite(one @ one).all()
found["matmul_s"] = round(time.monotonic() - began, 3)
half = one.to(torch.bfloat16)
found["bf16"] = bool(torch.isfinite((half @ half).float()).all())
began = time.monotonic()
try:
    doubled = torch.compile(lambda x: torch.relu(x) * 2)(one)
    assert torch.equal(doubled, torch.relu(one) * 2)
    found["compile_s"] = round(time.monotonic() - began, 1)
except Exception as error:
    found["compile_error"] = " ".join(str(error).split())[:200]
if device.type == "cuda":
    found["device"] = torch.cuda.get_device_name(0)
    found["visible"] = torch.cuda.device_count()
    torch.cuda.synchronize()
print(json.dumps(found))
"""
"""Program that is run in an image: memory, a product of matrices, bfloat16, and one line compiled."""

PROBE_TIMEOUT_S: Final = 300

WRITABLE: Final = {
    "HOME": "/tmp",  # noqa: S108  of a container of its own
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",  # noqa: S108  as above
    "TRITON_CACHE_DIR": "/tmp/triton",  # noqa: S108  as above
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # twice the work for one line
}
"""Writable places of a user without an account in a container of its own, and the least work to compile."""


@dataclass(frozen=True, slots=True)
class TriedDevice:
    """A device that a container gets: of NVIDIA by its UUID, of AMD by its nodes and their groups."""

    name: str
    how: Injection | None = None  # NVIDIA
    uuid: str = ""
    nodes: tuple[Path, ...] = ()  # AMD


def try_image(url: str | None, image: str, device: TriedDevice | None) -> Finding:
    """Start an image with a device, or on the CPU, and compute in it; return what came of it."""
    subject = f"image {image} on {device.name if device else 'the CPU'}"
    connection = EngineConnection(url, PROBE_TIMEOUT_S)
    target = "cpu" if device is None else "cuda"
    try:
        with engine_errors(f"start {image}"):
            client = connection.connect()
            try:
                code, text = _run_in(client, image, target, device)
            finally:
                client.close()
    except Unavailable as error:
        return Finding(subject, Verdict.PROBLEM, str(error), "runner images list names the images")
    last = text.strip().splitlines()[-1] if text.strip() else "no output"
    if code:
        return Finding(
            subject, Verdict.PROBLEM, f"exit code {code}: {last}", "runner images build makes it anew"
        )
    try:
        found = json.loads(last)
    except ValueError:
        return Finding(subject, Verdict.PROBLEM, f"it printed {last[:200]!r}", "the image must have torch")
    return _verdict(subject, found)


def _verdict(subject: str, found: Mapping[str, Any]) -> Finding:
    """Return the finding that the report of a probe means."""
    where = f"{found.get('device', 'the CPU')}, {found['matmul_s']} s for a first product"
    fact = f"torch {found['torch']} computes on {where}"
    if not found["bf16"]:
        return Finding(subject, Verdict.WARNING, f"{fact}; bfloat16 does not work", "use another precision")
    if error := found.get("compile_error"):
        return Finding(subject, Verdict.WARNING, f"{fact}; torch.compile fails: {error}", "use compile: off")
    return Finding(subject, Verdict.OK, f"{fact}, {found['compile_s']} s to compile a line")


def device_arguments(device: TriedDevice | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the host configuration that gives a container a device, and the variables that it needs."""
    host: dict[str, Any] = {"cap_drop": ["ALL"], "network_mode": "none", "pids_limit": 512}
    variables = {"NVIDIA_VISIBLE_DEVICES": "void", **WRITABLE}
    if device is None:
        return host, variables
    if device.nodes:
        host["devices"] = [f"{node}:{node}:rw" for node in device.nodes]
        host["group_add"] = sorted({str(node.stat().st_gid) for node in device.nodes})
    elif device.how == "hook":
        host["runtime"] = "nvidia"
        variables["NVIDIA_VISIBLE_DEVICES"] = device.uuid
    else:
        host["device_requests"] = [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={device.uuid}"]}]
    return host, variables


def _wait(client: APIClient, container: str) -> int:
    """Return the exit code of a container; may raise Unavailable."""
    try:
        return int(client.wait(container, timeout=PROBE_TIMEOUT_S)["StatusCode"])
    except (ReadTimeout, ConnectionError) as error:
        fact = f"has not ended within {PROBE_TIMEOUT_S} s"
        raise Unavailable(f"{fact}; the device hangs, or the machine has much else to do") from error


def _run_in(client: APIClient, image: str, target: str, device: TriedDevice | None) -> tuple[int, str]:
    """Run the probe in a new container, which is removed; return its exit code and output."""
    host, variables = device_arguments(device)
    config = client.inspect_image(image)["Config"] or {}  # type: ignore[no-untyped-call]
    created = client.create_container(
        image,
        entrypoint=list(inside_script("/", ("python", "-c", PROBE, target))),
        host_config=client.create_host_config(**host),
        user="65532:65532",
        environment={**neutralised(config.get("Env") or ()), **variables},
    )["Id"]
    try:
        client.start(created)
        code = _wait(client, created)
        return code, client.logs(created, tail=20).decode(errors="replace")
    finally:
        client.remove_container(created, v=True, force=True)
