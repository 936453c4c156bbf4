"""The ``/etc/passwd`` and ``/etc/group`` of a container, which name the user of its job.

Without them ``getpwuid`` fails in an image that does not know this user, and with it ``getpass.getuser``,
``os.path.expanduser("~user")`` and what libraries build on those.
"""

from hashlib import sha256
from pathlib import Path

from jobs.contract import JOB_DIR
from runner.base.durable import publish
from runner.base.errors import disk_errors
from runner.core.ports.executor import LaunchRequest
from runner.core.ports.users import Owner


def account_name(owner: Owner) -> str:
    """Return the name of a user in its container: that of the host, unless these files cannot have it."""
    name = owner.name
    fits = name.isprintable() and not set(name) & set(":,") and not name.startswith(("+", "-", "#"))
    return name if name and fits and name != "root" else f"user-{owner.uid}"


def account_files(request: LaunchRequest, directory: Path | None) -> list[tuple[Path, Path, bytes]]:
    """Return the source in ``directory``, the target and the content of the files of an attempt.

    A file is called after its content, so the attempts of a user share it.  None: there are no files.
    """
    if directory is None:
        return []
    owner, name = request.owner, account_name(request.owner)
    user = f"{name}:x:{owner.uid}:{owner.gid}::{JOB_DIR / 'home'}:/bin/sh\n"
    more = "".join(f"group-{gid}:x:{gid}:{name}\n" for gid in request.groups)
    contents = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\n{user}".encode(),
        "group": f"root:x:0:\n{name}:x:{owner.gid}:\n{more}".encode(),
    }
    return [
        (directory / f"{file}-{sha256(content).hexdigest()[:16]}", Path("/etc", file), content)
        for file, content in contents.items()
    ]


def write_account_files(request: LaunchRequest, directory: Path | None) -> None:
    """Write the files of an attempt, unless they are there; may raise Unavailable."""
    for source, _, content in account_files(request, directory):
        with disk_errors(source):
            if not source.exists():
                source.parent.mkdir(exist_ok=True)
                source.parent.chmod(0o755)  # readable for every uid that jobs have, whatever the umask
                publish(source, content, 0o644)
