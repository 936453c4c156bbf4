"""What ``runner doctor`` asks the container engine, and the program that it starts in an image."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from docker import APIClient

from runner.adapters.docker.connection import EngineConnection, engine_errors
from runner.base.errors import Unavailable
from runner.core.doctor import EngineFacts, Finding, Verdict

CDI_DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
ENGINE_TIMEOUT_S: Final = 10


def describe_engine(url: str | None, root: Path = Path("/")) -> EngineFacts:
    """Return the facts about the container engine."""
    connection = EngineConnection(url, ENGINE_TIMEOUT_S)
    try:
        with engine_errors("look at the container engine"):
            client = connection.connect()
            try:
                info: dict[str, Any] = client.info()
            finally:
                client.close()
    except Unavailable as error:
        return EngineFacts(error=str(error))
    known = info.get("CDISpecDirs")
    return EngineFacts(
        version=str(info.get("ServerVersion", "")),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_enabled=None if known is None else bool(known),
        cdi_files=tuple(_cdi_files(known, root)),
        storage=str(info.get("Driver", "")),
    )


def _cdi_files(directories: Iterable[str] | None, root: Path) -> Iterator[str]:
    """Yield the CDI specifications that describe NVIDIA GPUs."""
    named = [each.lstrip("/") for each in directories] if directories else list(CDI_DIRECTORIES)
    for directory in named:
        with suppress(OSError):
            for path in sorted((root / directory).iterdir()):
                if path.suffix in {".yaml", ".json"} and "nvidia.com/gpu" in path.read_text(errors="replace"):
                    yield str(path)


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
if device.type == "cuda":
    found["device"] = torch.cuda.get_device_name(0)
    found["visible"] = torch.cuda.device_count()
    torch.cuda.synchronize()
print(json.dumps(found))
"""
"""What is run in an image: memory, a product of matrices, bfloat16."""

PROBE_TIMEOUT_S: Final = 120


def try_image(url: str | None, image: str, device: str | None, how: str | None) -> Finding:
    """Start an image with a device, or on the CPU, and compute in it; return what came of it."""
    subject = f"image {image} on {device or 'the CPU'}"
    connection = EngineConnection(url, PROBE_TIMEOUT_S)
    target = "cpu" if device is None else "cuda"
    try:
        with engine_errors(f"start {image}"):
            client = connection.connect()
            try:
                code, text = _run_in(client, image, target, _device_arguments(client, device, how))
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
    rounding = "" if found["bf16"] else "; bfloat16 does not work"
    device_name = f"{found.get('device', 'the CPU')}, {found['matmul_s']} s for a first product"
    return Finding(subject, Verdict.OK, f"torch {found['torch']} computes on {device_name}{rounding}")


def _device_arguments(client: APIClient, device: str | None, how: str | None) -> dict[str, Any]:
    host: dict[str, Any] = {"cap_drop": ["ALL"], "network_mode": "none", "pids_limit": 512}
    if device is not None and how == "cdi":
        host["device_requests"] = [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={device}"]}]
    elif device is not None and how == "hook":
        host["runtime"] = "nvidia"
    made: dict[str, Any] = client.create_host_config(**host)
    return made


def _run_in(client: APIClient, image: str, target: str, host: dict[str, Any]) -> tuple[int, str]:
    """Run the probe in a new container, which is removed; return its exit code and output."""
    visible = {"NVIDIA_VISIBLE_DEVICES": "void"} if target == "cpu" else {}
    created = client.create_container(
        image,
        entrypoint=["python", "-c", PROBE, target],
        host_config=host,
        user="65532:65532",
        environment=visible,
    )["Id"]
    try:
        client.start(created)
        code = int(client.wait(created, timeout=PROBE_TIMEOUT_S)["StatusCode"])
        return code, client.logs(created, tail=20).decode(errors="replace")
    finally:
        client.remove_container(created, v=True, force=True)
