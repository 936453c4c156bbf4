"""Files of the packages of a release; a build without the libraries of the dashboard is refused."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")
def test_a_debian_package_has_the_wheel_and_what_the_system_needs(tmp_path: Path) -> None:
    wheel = tmp_path / "gpu_job_runner-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    done = subprocess.run(
        [ROOT / "scripts" / "deb", wheel, tmp_path], capture_output=True, text=True, check=True
    )
    package = done.stdout.strip()
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    files = {line.split()[-1] for line in listed.splitlines() if not line.startswith("d")}
    assert files == {
        f"./usr/share/gpu-job-runner/{wheel.name}",
        "./usr/share/doc/gpu-job-runner/copyright",
        "./etc/logrotate.d/gpu-job-runner",
    }
    assert all("root/root" in line for line in listed.splitlines())
    said = subprocess.run(["dpkg-deb", "-f", package], capture_output=True, text=True, check=True).stdout
    assert "Version: 0.1.0\n" in said
    assert "Depends: python3 (>= 3.11)" in said


def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the build hook, without the build system, whose tool fetches nothing."""
    stub = ModuleType("hatchling.builders.hooks.plugin.interface")
    stub.BuildHookInterface = {Any: object}  # type: ignore[attr-defined]
    for name in (
        "hatchling",
        "hatchling.builders",
        "hatchling.builders.hooks",
        "hatchling.builders.hooks.plugin",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "hatch_build", raising=False)
    import hatch_build

    monkeypatch.setattr("hatch_build.subprocess.run", lambda *_, **__: None)
    return hatch_build


def test_a_build_without_the_libraries_of_the_dashboard_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = hook(monkeypatch)
    build = module.VendoredAssets()
    build.root = str(tmp_path)
    with pytest.raises(RuntimeError, match=r"uPlot\.LICENSE, .* missing: install npm, .* RUNNER_NO_ASSETS=1"):
        build.initialize("standard", {})
    build.initialize("editable", {})
    for name in module.FILES:
        (tmp_path / module.VENDOR / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module.VENDOR / name).write_text("")
    build.initialize("standard", {})
    monkeypatch.setenv("RUNNER_NO_ASSETS", "1")
    build.root = "/nowhere"
    build.initialize("standard", {})
