"""Collects facts for ``runner doctor``: from /proc, /sys and /dev, and from NVML.

Every root can be replaced, so that machines can be made up.
"""

import grp
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Final

from runner.adapters.gpu.amd import VENDOR as AMD
from runner.adapters.gpu.amd import AmdProbe
from runner.adapters.gpu.nvidia import VENDOR as NVIDIA
from runner.adapters.gpu.nvidia import describe_driver
from runner.adapters.gpu.topology import gpus_on_bus
from runner.base.file_systems import remote_type
from runner.base.reach import closed_installation
from runner.core.doctor import (
    AmdFacts,
    HostFacts,
    Node,
    NvidiaFacts,
)

_NVIDIA_NODE: Final = re.compile(r"nvidia(\d+|ctl|-uvm)")


@dataclass(frozen=True, slots=True)
class FactCollector:
    """Reads the facts about a machine whose file systems are at ``root``."""

    root: Path = Path("/")
    state_dir: Path = Path("/")

    def nvidia(self) -> NvidiaFacts:
        """Return the facts about NVIDIA; none where there is no GPU, no driver and no NVML."""
        on_bus, module = gpus_on_bus(self.root / "sys", NVIDIA), self._read("sys/module/nvidia/version")
        facts = describe_driver()
        if facts.nvml_error and not (on_bus or module):
            return NvidiaFacts()
        return replace(
            facts,
            on_bus=on_bus,
            driver=module or facts.driver,
            nodes=tuple(self._nodes("dev", _NVIDIA_NODE)),
            toolkit=which("nvidia-ctk"),
        )

    def amd(self) -> AmdFacts:
        """Return the facts about AMD."""
        sys_root, dev_root = self.root / "sys", self.root / "dev"
        kfd = tuple(self._nodes("dev", re.compile("kfd")))
        return AmdFacts(
            on_bus=gpus_on_bus(sys_root, AMD),
            driver=(sys_root / "module/amdgpu").exists(),
            version=self._read("sys/module/amdgpu/version"),
            kfd=kfd[0] if kfd else None,
            render=tuple(self._nodes("dev/dri", re.compile(r"renderD\d+"))),
            gpus=tuple(device.name for device in AmdProbe(sys_root, dev_root).devices()),
        )

    def host(self) -> HostFacts:
        """Return the facts about the host."""
        cgroups = self.root / "sys/fs/cgroup"
        version = (
            2 if (cgroups / "cgroup.controllers").exists() else 1 if (cgroups / "memory").exists() else None
        )
        return HostFacts(
            cgroup=version,
            shm_bytes=_size_bytes(self.root / "dev/shm"),
            disk_free_bytes=_free_bytes(self.state_dir),
            disk_path=str(self.state_dir),
            remote_type=remote_type(str(self.state_dir)),
            inotify_watches=self._number("proc/sys/fs/inotify/max_user_watches"),
            inotify_instances=self._number("proc/sys/fs/inotify/max_user_instances"),
            clock_synchronized=self._clock(),
            closed_installation=str(closed_installation() or "") if os.geteuid() == 0 else "",
        )

    def _nodes(self, directory: str, name: re.Pattern[str]) -> Iterator[Node]:
        with suppress(OSError):
            for path in sorted((self.root / directory).iterdir()):
                if name.fullmatch(path.name):
                    shown = f"/{path.relative_to(self.root)}"
                    by_group = (path.stat().st_mode & 0o060) == 0o060
                    yield Node(shown, _group(path), os.access(path, os.R_OK | os.W_OK), by_group)

    def _clock(self) -> bool | None:
        """Return True if a time service says that it keeps the clock; None: none is known here."""
        if (self.root / "run/systemd/timesync/synchronized").exists():
            return True
        if (self.root / "run/chrony").exists():
            return True
        return False if (self.root / "run/systemd/timesync").exists() else None

    def _read(self, path: str) -> str | None:
        try:
            return (self.root / path).read_text().strip()
        except OSError:
            return None

    def _number(self, path: str) -> int | None:
        text = self._read(path)
        return int(text) if text is not None and text.isdecimal() else None


def _group(path: Path) -> str:
    gid = path.stat().st_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def groups_of_this_process() -> frozenset[str]:
    """Return the names of this process's groups."""
    found = set()
    for gid in {os.getegid(), *os.getgroups()}:
        try:
            found.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            found.add(str(gid))
    return frozenset(found)


def _size_bytes(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _free_bytes(path: Path) -> int | None:
    """Return the free bytes of the file system on which a directory is, or will be."""
    for each in (path, *path.parents):
        with suppress(OSError):
            found = os.statvfs(each)
            return found.f_frsize * found.f_bavail
    return None
