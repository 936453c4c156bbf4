"""Checks of the helper before it acts for a daemon that it does not trust.

The daemon parses what users send.  Whoever takes it over can ask the helper for all that a daemon may do, so
the helper keeps the walls itself: no job is root's or the daemon's own user's, nothing is mounted but pins,
secrets and prepared data, and no container shares the host's network.
"""

import os
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.adapters.host.accounts import has_group
from runner.base.errors import Refused
from runner.core.ports.devices import Device
from runner.core.ports.executor import LaunchRequest, Mount
from runner.core.ports.network import OutboundNetwork
from runner.core.ports.users import Owner
from runner.files.datasets import datasets_dir

_JOB_ID: Final = re.compile(r"[1-9][0-9]{0,17}")
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._/-]{0,127}")
_RENDER_NODE: Final = re.compile(r"/dev/dri/renderD[0-9]{1,4}")
_MAX_CPUS: Final = 2**16


@dataclass(frozen=True, slots=True)
class Walls:
    """Bounds of all requests, as the operator has set them."""

    directory: Path
    """The state directory."""
    daemon_uid: int
    root_jobs: tuple[int, int]
    """uid and gid of root's jobs."""
    account_problem: Callable[[int], str | None] = lambda _uid: None

    def owner(self, uid: int, gid: int) -> Owner:
        """Return the owner of a job.

        Raises:
            Refused: it would be root, the daemon's own user, or somebody in a group that is not his.
        """
        if uid == 0 or gid == 0 or uid == self.daemon_uid:
            raise Refused(f"{uid}:{gid}: no job belongs to root or to the daemon's user")
        if (uid, gid) == self.root_jobs:
            return Owner(uid, gid, str(uid))
        problem = self.account_problem(uid)
        if problem is not None:
            raise Refused(problem)
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            if has_group(gid):
                raise Refused(f"{uid}:{gid}: an unknown user in a group of this host") from None
            return Owner(uid, gid, str(uid))
        if gid != entry.pw_gid and gid not in os.getgrouplist(entry.pw_name, entry.pw_gid):
            raise Refused(f"{uid}:{gid}: {entry.pw_name} is not in this group")
        return Owner(uid, gid, entry.pw_name)

    def check_launch(
        self, request: LaunchRequest, kind: str, instance: str, network: OutboundNetwork | None
    ) -> None:
        """Check a launch.

        Raises:
            Refused: something in it is not what a daemon would ask for.
        """
        key, owner = request.key, request.owner
        self.owner(owner.uid, owner.gid)
        for gid in request.groups:
            self.owner(owner.uid, gid)
        _expect(key.instance == instance, "another store")
        _expect(_JOB_ID.fullmatch(key.job_id) is not None and key.attempt >= 1, "not an attempt")
        run_dir = self.directory / "jobs" / key.job_id
        _expect(request.run_dir == run_dir, f"run directory {request.run_dir}")
        log = run_dir / "attempts" / str(key.attempt)
        _expect(request.log.parent == log and ".." not in request.log.parts, f"log {request.log}")
        name, name_servers = (network.name, tuple(network.dns)) if network else (None, ())
        _expect(request.network in {None, name}, f"network {request.network}")
        _expect(request.name_servers in {(), name_servers}, f"name servers {request.name_servers}")
        limits = request.limits
        _expect(0 < limits.cpus <= _MAX_CPUS and min(limits.memory_bytes, limits.pids) > 0, "no limits")
        _expect(min(limits.shm_bytes, limits.tmp_bytes) >= 0, "no limits")
        _expect(kind != "process" or not request.mounts, "mounts of a plain process")
        _expect(request.batch is None, "options of Slurm")
        for mount in request.mounts:
            self._check_mount(mount, request)
        for device in request.devices:
            _check_device(device)

    def _check_mount(self, mount: Mount, request: LaunchRequest) -> None:
        """Check that a source is a pin of this attempt, a secret of this job, or prepared data."""
        source, key = mount.source, request.key
        pins = self.directory / "pins" / f"{key.job_id}-{key.attempt}"
        is_pin = source.parent == pins and source.name.isdecimal()
        is_secret = source.parent == request.run_dir / "secrets" and mount.read_only
        is_code = source.parent == request.run_dir / "work" and source.name.isdecimal()
        data = datasets_dir(self.directory)
        is_data = source.parent == data and source.name not in {"", ".", ".."} and mount.read_only
        _expect(
            ".." not in source.parts and (is_pin or is_secret or is_code or is_data), f"mount source {source}"
        )
        _expect(is_pin or not source.is_symlink(), f"mount source {source} is a link")


def _check_device(device: Device) -> None:
    _expect(_UUID.fullmatch(device.uuid) is not None, f"device {device.uuid!r}")
    node = device.render_node
    _expect(node is None or _RENDER_NODE.fullmatch(str(node)) is not None, f"device node {node}")


def _expect(fact: bool, otherwise: str) -> None:  # noqa: FBT001  it is the question
    if not fact:
        raise Refused(f"the helper refuses a launch: {otherwise}")
