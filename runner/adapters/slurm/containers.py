"""Attempts in containers on nodes, by ``crun`` of the job itself: no engine and no root is needed."""

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from runner.adapters.docker.hardening import LOOPBACK_HOSTS, HardeningSettings, engine_arguments
from runner.adapters.launch import attempt_name
from runner.adapters.slurm.images import UnpackedImages
from runner.adapters.slurm.oci import NodeSettings, configuration
from runner.core.ports.executor import LaunchRefused, LaunchRequest

RUN: Final = """\
state=
for base in "${{TMPDIR:-/tmp}}" /var/tmp /dev/shm; do
    for left in "$base"/runner-crun.*; do
        pid=${{left##*/runner-crun.}}
        [ ! -O "$left" ] || kill -0 "${{pid%%.*}}" 2>/dev/null || rm -rf "$left"
    done
    [ -n "$state" ] || state=$(mktemp -d "$base/runner-crun.$$.XXXXXX" 2>/dev/null)
done
[ -n "$state" ] || {{ echo "no directory in /tmp, /var/tmp or /dev/shm of this node can be made"; exit 126; }}
child=
early=
forward() {{ if [ -n "$child" ]; then kill "-$1" "$child"; else early=$1; fi; }}
for n in 1 2 3 10 12 14 15; do trap "forward $n" $n; done
env --default-signal=INT,QUIT {crun} --root "$state" --cgroup-manager=disabled run --bundle {bundle} {name} &
child=$!
[ -z "$early" ] || kill "-$early" "$child"
while wait $child; status=$?; kill -0 $child 2>/dev/null; do :; done
wait $child 2>/dev/null; last=$?; [ $last -eq 127 ] || status=$last
rm -rf "$state"
exit $status
"""
"""The program of an attempt in a container; containers of attempts that were killed are swept first.

The process is part of the name of its directory: another attempt of the user never finds one without it.
"""


@dataclass(frozen=True, slots=True)
class NodeContainers:
    """How containers are run on nodes."""

    instance: str
    images: UnpackedImages
    node: NodeSettings
    open_files: int = 16384
    crun: str = "crun"

    def bundle(self, request: LaunchRequest) -> dict[str, Any]:
        """Return the configuration of the container of an attempt.

        Raises:
            ImageGone: the image must be prepared again.
            LaunchRefused: it asks for what containers on nodes cannot have.
            Refused: a mount target or a variable is not allowed.
        """
        if request.batch is not None and request.batch.gpus.count:
            raise LaunchRefused(
                "GPUs in containers on Slurm's nodes are not supported; set slurm.containers: none"
            )
        if request.network is not None:
            raise LaunchRefused("containers on Slurm's nodes have no network; set network: none")
        hosts = self.images.directory / "hosts"
        hardening = HardeningSettings(self.instance, hosts_file=hosts, open_files=self.open_files)
        asked = engine_arguments(request, hardening)
        image = self.images.find(request.image)
        if not hosts.exists():
            hosts.write_bytes(LOOPBACK_HOSTS)
            hosts.chmod(0o644)
        return configuration(asked, image.rootfs, image.environment, self.node)

    def program(self, request: LaunchRequest, bundle: Path) -> str:
        """Return the shell script that runs the container."""
        name, place = attempt_name(request.key), quote(os.fsdecode(bundle))
        return RUN.format(crun=quote(self.crun), bundle=place, name=name)
