"""Attempts in containers on nodes, by ``crun`` of the job itself: no engine and no root is needed."""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any, Final

from jobs.contract import JOB_DIR
from runner.adapters.docker.accounts import write_account_files
from runner.adapters.docker.hardening import LOOPBACK_HOSTS, HardeningSettings, engine_arguments
from runner.adapters.launch import SUPERVISED_ENTRY, attempt_name
from runner.adapters.slurm.images import UnpackedImages
from runner.adapters.slurm.oci import NodeSettings, configuration
from runner.adapters.slurm.options import OF_NODE
from runner.core.ports.executor import BatchRequest, LaunchRefused, LaunchRequest

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
{prepare}env --default-signal=INT,QUIT {crun} --root "$state" --cgroup-manager=disabled \\
    run --pid-file "$state/pid" --bundle {bundle} {options}{name} &
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


PREPARE_NODE: Final = """\
case ${{RUNNER_NODE:-0}} in 0) log=log.txt ;; *) log=node-$RUNNER_NODE.log.txt ;; esac
sed {expressions} -e "s/@LOG@/$log/g" {bundle}/config.json >"$state/config.json" || exit 126
"""
"""Script before the container of one of several nodes: its own configuration, with its number."""

GIVE_CARDS: Final = 'python3 {bundle}/devices {vendor} "$state/config.json" {directories} || exit 126\n'
"""Script that completes a configuration with the cards that Slurm has chosen on the node."""


@dataclass(frozen=True, slots=True)
class NodeContainers:
    """Containers on nodes: their images, their settings and the program that runs them."""

    instance: str
    images: UnpackedImages
    node: NodeSettings
    open_files: int = 16384
    crun: str = "crun"
    shares_network: bool = False
    """Containers that need a network, as on several nodes, have that of their nodes."""
    cdi_directories: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """Of nodes, with the specifications of NVIDIA's cards."""

    def bundle(self, request: LaunchRequest) -> dict[str, Any]:
        """Return the configuration of the container of an attempt.

        Raises:
            ImageGone: the image must be prepared again.
            LaunchRefused: it asks for what containers on nodes cannot have.
            Refused: a mount target or a variable is not allowed.
        """
        if request.network is not None:
            raise LaunchRefused("containers on Slurm's nodes have no network of the engine")
        batch = request.batch or BatchRequest(request.limits)
        several = batch.nodes > 1
        if several and not self.shares_network:
            raise LaunchRefused(
                "containers on several nodes need their network; set slurm.nodes_network: host"
            )
        hosts = self.images.directory / "hosts"
        accounts = self.images.directory / "accounts"
        hardening = HardeningSettings(
            self.instance, hosts_file=hosts, accounts=accounts, open_files=self.open_files
        )
        asked = engine_arguments(request, hardening)
        image = self.images.find(request.image)
        if not hosts.exists() or hosts.read_bytes() != LOOPBACK_HOSTS:
            hosts.write_bytes(LOOPBACK_HOSTS)
            hosts.chmod(0o644)
        write_account_files(request, accounts)
        rootfs, variables = image.rootfs, image.environment
        shares_network = several or (batch.outbound and self.shares_network)
        found = _suspendable(
            configuration(asked, rootfs, variables, self.node, shares_network=shares_network)
        )
        return _with_node(found, request) if several else found

    def program(self, request: LaunchRequest, bundle: Path) -> str:
        """Return the shell script that runs the container."""
        name, place = attempt_name(request.key), quote(os.fsdecode(bundle))
        prepare = options = ""
        batch = request.batch or BatchRequest(request.limits)
        if batch.nodes > 1 or batch.gpus.count:
            several = OF_NODE if batch.nodes > 1 else ()
            expressions = " ".join(f'-e "s/@{variable}@/${variable}/g"' for variable in several)
            prepare = PREPARE_NODE.format(expressions=expressions, bundle=place)
            options = '--config "$state/config.json" '
        if batch.gpus.count:
            directories = " ".join(map(quote, self.cdi_directories))
            prepare += GIVE_CARDS.format(bundle=place, vendor=batch.gpus.vendor, directories=directories)
        return RUN.format(crun=quote(self.crun), bundle=place, name=name, prepare=prepare, options=options)


def _suspendable(found: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose first shell forwards no SIGTSTP.

    Slurm suspends and resumes every process itself: a forwarded one would stop the program once more.
    """
    heeding = SUPERVISED_ENTRY.replace("*) trap", "20|21|22) trap : $n ;; *) trap")
    arguments = [heeding if word == SUPERVISED_ENTRY else word for word in found["process"]["args"]]
    return {**found, "process": {**found["process"], "args": arguments}}


def _with_node(found: dict[str, Any], request: LaunchRequest) -> dict[str, Any]:
    """Return a configuration with marks, for which each node puts its own values."""
    process, log = found["process"], str(JOB_DIR / request.log.relative_to(request.run_dir))
    marked = str(PurePosixPath(log).with_name("@LOG@"))
    arguments = [marked if word == log else word for word in process["args"]]
    variables = [f"{name}=@{name}@" for name in OF_NODE]
    process = {**process, "args": arguments, "env": [*process["env"], *variables]}
    return {**found, "process": process, "hostname": "job-@RUNNER_NODE@"}
