"""``runner serve``, ``runner stop`` and ``runner version``: the daemon itself."""

import gc
import os
import sys
from typing import Final

import click

from runner.cli.console import complain, say, say_json
from runner.cli.parameters import as_json
from runner.client.autostart import ROOT_STATE_DIR, SYSTEM_SOCKET, NoDaemon, wait_for_exit
from runner.client.client import InterruptedRequest, find
from runner.server.environment import remove_unknown

UNIT: Final = """\
[Unit]
Description=GPU job runner
After=docker.service
Wants=docker.service

[Service]
Type=exec
ExecStart={command} serve --socket {socket} --state-dir {state_dir}
# "systemctl reload" reads the settings again.
ExecReload=/bin/kill -HUP $MAINPID
RuntimeDirectory=runner
# The socket stays while the daemon is away: commands wait for it instead of starting one of their own.
RuntimeDirectoryPreserve=yes
StateDirectory=runner
Restart=always
RestartSec=1
# Only the daemon itself: jobs that are processes of this host go on without it.
KillMode=process
# What users run on this host does not keep the daemon from answering; containers have shares of their own.
CPUWeight=400
# Each command that follows something holds a connection.
LimitNOFILE=65536
UMask=0022
# What the daemon does as root: files and processes of users, the mounts that pin their paths, and the
# firewall of jobs with a network (CAP_NET_ADMIN; remove it where no job may have one).  It looks into no
# other process (CAP_SYS_PTRACE) and needs no kernel log that is closed to users (CAP_SYSLOG).  With a system
# user "runner", only a helper has them; the part that answers users gives all of them up (CAP_SETPCAP).
CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL
CapabilityBoundingSet=CAP_SETGID CAP_SETUID CAP_SYS_ADMIN CAP_SYS_CHROOT CAP_MKNOD CAP_NET_ADMIN CAP_SETPCAP
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
# The daemon, and the jobs that are processes of this host.
MemoryMax=90%
TasksMax=65536
OOMPolicy=continue
# No ProtectSystem, PrivateTmp or other option that gives the daemon a mount namespace of its own: the engine
# would not see the mounts that pin users' paths.  With pin_mounts: false in the settings, add
# ProtectSystem=strict and ReadWritePaths=/var/lib/runner /run/runner.

[Install]
WantedBy=multi-user.target
"""


@click.command()
@click.option("--socket", metavar="PATH", help="The socket to listen on; by default in the state directory.")
@click.option("--state-dir", metavar="DIR", help="The directory for jobs; one daemon per directory.")
@click.option("--settings", metavar="FILE", help="The operator's settings (docs/operate/settings.md).")
@click.option("--systemd-unit", is_flag=True, help="Print a unit file for a daemon for all users and exit.")
@click.option("--apparmor-profile", is_flag=True, help="Print an AppArmor profile for containers and exit.")
def serve(
    *,
    socket: str | None,
    state_dir: str | None,
    settings: str | None,
    systemd_unit: bool,
    apparmor_profile: bool,
) -> None:
    """Run the daemon in the foreground until SIGTERM or "runner stop"; jobs continue without it.

    Other commands start your own daemon if none answers, with its state in $RUNNER_STATE_DIR, else
    $XDG_STATE_HOME/runner or ~/.local/state/runner (root: /var/lib/runner), and the settings of
    $RUNNER_SETTINGS, else of ~/.config/runner/settings.yaml (root: /etc/runner/settings.yaml). One for
    all users listens on /run/runner/runner.sock. As root, with systemd:

    \b
    runner serve --systemd-unit > /etc/systemd/system/runner.service
    systemctl daemon-reload
    systemctl enable --now runner
    """
    if apparmor_profile:
        from runner.files.settings.model import APPARMOR_PROFILE

        click.echo(APPARMOR_PROFILE.read_text(encoding="utf-8"), nl=False)
        return
    if systemd_unit:
        click.echo(unit(sys.executable), nl=False)
        return
    remove_unknown(os.environ)  # before libraries that read the environment are loaded
    gc.disable()  # nothing loaded here can be freed, and collection takes a fifth of the start
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # structlog would load it; nothing is drawn
    from runner.server.main import serve as be_the_daemon

    socket = socket or (None if state_dir else os.environ.get("RUNNER_SOCKET"))
    click.get_current_context().exit(be_the_daemon(socket, state_dir, settings))


@click.command()
@as_json
def stop(*, as_json: bool) -> None:
    """Stop the daemon; jobs continue, and the next command starts it again.

    Commands that wait or follow do not start it again. Exits with 4 after 20 s.
    """
    try:
        client = find(complain)
    except NoDaemon as absent:
        complain(f"{absent}; nothing to stop")
        return
    daemon = client.version()
    pid = daemon["pid"]
    try:
        client.stop()
        wait_for_exit(daemon["state_dir"], pid)
    except KeyboardInterrupt as stopped:
        raise InterruptedRequest(
            f"interrupted; the daemon (pid {pid}) was asked to stop: runner version shows whether it has"
        ) from stopped
    if as_json:
        say_json({"stopped": pid})
    else:
        say(f"the daemon (pid {pid}) has stopped; jobs go on")


@click.command()
@as_json
def version(*, as_json: bool) -> None:
    """Print the version of this command and of the daemon, if one answers.

    Does not start a daemon.
    """
    try:
        daemon = find().version()
    except NoDaemon:
        daemon = None
    if as_json:
        say_json({"client": own_version(), "daemon": daemon})
        return
    say(f"runner {own_version()}")
    if daemon:
        counts = ", ".join(f"{number} {state}" for state, number in daemon["jobs"].items()) or "no jobs"
        say(f"daemon {daemon['version']} (pid {daemon['pid']}, {daemon['executor']}): {counts}")
        say(f"state {daemon['state_dir']}")
    else:
        complain("no daemon runs; runner list starts one")


def unit(python: str) -> str:
    """Return a systemd unit file for a daemon that runs with this Python."""
    return UNIT.format(
        command=f"{python} -P -m runner.cli.main", socket=SYSTEM_SOCKET, state_dir=ROOT_STATE_DIR
    )


def own_version() -> str:
    from importlib.metadata import version as of

    return of("gpu-job-runner")
