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
ready=
early=
forward() {{ if [ -n "$ready" ]; then kill "-$1" "$child"; else early=$1; fi; }}
for n in 1 2 3 10 12 14 15; do trap "forward $n" $n; done
env --default-signal=INT,QUIT {crun} --root "$state" --cgroup-manager=disabled \\
    run --pid-file "$state/pid" --bundle {bundle} {name} &
child=$!
listens() {{
    init=$(cat "$state/pid" 2>/dev/null)
    [ -n "$init" ] || return 1
    case $(cat "/proc/$init/comm" 2>/dev/null) in init) ;; *) return 1 ;; esac
    [ -n "$(cat "/proc/$init/task/$init/children" 2>/dev/null)" ]
}}
tries=0
while [ $((tries += 1)) -lt 200 ] && kill -0 "$child" 2>/dev/null && ! listens; do sleep 0.05; done
ready=yes
[ -z "$early" ] || kill "-$early" "$child" 2>/dev/null
while wait $child; status=$?; kill -0 $child 2>/dev/null; do :; done
wait $child 2>/dev/null; last=$?; [ $last -eq 127 ] || status=$last
rm -rf "$state"
exit $status
"""
"""The program of an attempt in a container; containers of attempts that were killed are swept first.

The kernel discards a signal for the first process of a container that handles none yet, so signals wait
until it has started the program, 10 s at most.  The process is part of the name of the directory: another
attempt of the user never finds one without it.
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
