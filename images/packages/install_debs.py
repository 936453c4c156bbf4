"""Runs inside of a container: installs Debian packages, and writes what that has changed and removed.

``python3 -I -c THIS PACKAGES OUT UID:GID``; it stands alone, for the image has nothing of the runner that it
could import.  What differs between two installations is left out: logs, caches, byte code, old copies.
"""

import json
import os
import stat
import subprocess
import sys
import tarfile

TIME = 315532800  # of every file: 1980, as in all layers of packages
LEFT_OUT = (
    *("/proc", "/sys", "/dev", "/run", "/tmp", "/out", "/var/log", "/var/cache", "/var/tmp"),  # noqa: S108
    *("/var/lib/apt", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/.dockerenv"),
    *("/etc/machine-id", "/var/lib/dbus/machine-id", "/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend"),
    *("/var/lib/dpkg/status-old", "/var/lib/dpkg/diversions-old", "/var/lib/dpkg/statoverride-old"),
    *("/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.pwd.lock"),
)
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LC_ALL": "C.UTF-8",
    "SOURCE_DATE_EPOCH": str(TIME),
    "HOME": "/root",
}


def look() -> "dict[str, tuple[int, ...]]":
    """Return the stamp that changes with a file, by path."""
    found: dict[str, tuple[int, ...]] = {}
    for directory, directories, names in os.walk("/"):
        directories[:] = sorted(each for each in directories if not left_out(os.path.join(directory, each)))
        for name in (*directories, *names):
            path = os.path.join(directory, name)
            if not left_out(path):
                about = os.lstat(path)
                found[path] = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return found


def left_out(path: str) -> bool:
    return path in LEFT_OUT or path.endswith((".pyc", "/__pycache__"))


def add(tar: tarfile.TarFile, path: str) -> None:
    """Add a file as it is now, but for its time, and without the rights that no job has."""
    about = os.lstat(path)
    member = tarfile.TarInfo(path.lstrip("/"))
    member.mtime, member.uid, member.gid = TIME, about.st_uid, about.st_gid
    member.mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISLNK(about.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(member)
    elif stat.S_ISDIR(about.st_mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    elif stat.S_ISREG(about.st_mode):
        member.mode &= 0o777
        member.size = about.st_size
        with open(path, "rb") as file:
            tar.addfile(member, file)


def main(packages: str, out: str, owner: str) -> None:
    before = look()
    debs = sorted(os.path.join(packages, name) for name in os.listdir(packages))
    options = ["-q", "-y", "--no-install-recommends", "-o", "DPkg::Use-Pty=0"]
    sandbox = ["-o", "APT::Sandbox::User=root", "-o", "Dpkg::Options::=--force-confold"]
    done = subprocess.run(["apt-get", *options, *sandbox, "install", *debs], env=ENVIRONMENT, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    after = look()
    with tarfile.open(os.path.join(out, "layer.tar"), "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({*before, *after}):
            if path in after and after[path] != before.get(path):
                add(tar, path)
    kept = {*after, "/"}
    removed = [path for path in sorted(before) if path not in after and os.path.dirname(path) in kept]
    with open(os.path.join(out, "removed.json"), "w", encoding="utf-8") as file:
        json.dump(removed, file)
    uid, gid = map(int, owner.split(":"))
    for name in ("layer.tar", "removed.json"):
        os.chown(os.path.join(out, name), uid, gid)


if __name__ == "__main__":
    main(*sys.argv[1:])
