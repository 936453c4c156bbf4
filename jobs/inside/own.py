"""Puts the projects of a user's own on the path of a program, and becomes that program.

``own.py DIRECTORY PROJECTS PATH -- COMMAND...`` writes what an installer would write beside the sources of
each project into DIRECTORY: its name and version, its entry points, and a launcher for each of its commands.
PROJECTS is a JSON list; the sources of a project without any are ``src``, if there is one that is no package,
else the directory of the project.  PATH comes before what PYTHONPATH says in the image.
"""

# Any Python from 3.7 on runs this file, and a start should take little: no pathlib.
# ruff: noqa: PTH101, PTH103, PTH105, PTH112, PTH113, PTH118, PTH120, PTH123

from __future__ import annotations

import json
import os
import re
import signal
import sys

NOT_EXECUTABLE, NOT_FOUND = 126, 127

LAUNCHER = """\
#!/usr/bin/env python3
import sys
from {module} import {first}
sys.exit({function}())
"""


def main(arguments: list[str]) -> int:
    """Become the program; return an exit code if that is not possible."""
    directory, projects, path, _, *argv = arguments
    try:
        sources = [place for each in json.loads(projects) for place in add(directory, each)]
    except OSError as error:
        return say(f"{error.filename}: {error.strerror}", NOT_EXECUTABLE)
    given = [directory, *sources, path, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in given if each)
    os.environ["PATH"] = os.pathsep.join([os.path.join(directory, "bin"), os.environ.get("PATH", os.defpath)])
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and by what it becomes
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  the program of the job
    except FileNotFoundError as error:
        return say(f"{argv[0]}: {error.strerror}", NOT_FOUND)
    except OSError as error:
        return say(f"{argv[0]}: {error.strerror}", NOT_EXECUTABLE)


def say(text: str, code: int) -> int:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    return code


def add(directory: str, project: dict[str, object]) -> list[str]:
    """Write what belongs to a project, and return the directories of its sources."""
    root, name, version = (str(project[key]) for key in ("directory", "name", "version"))
    about = "{}-{}.dist-info".format(re.sub(r"[-_.]+", "_", name), version)
    write(directory, about + "/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    write(directory, about + "/INSTALLER", "runner\n")
    groups: dict[str, list[str]] = {}
    for group, command, target in project["entry_points"]:  # type: ignore[attr-defined]
        groups.setdefault(group, []).append(f"{command} = {target}\n")
        if group == "console_scripts":
            module, _, function = target.partition(":")
            text = LAUNCHER.format(module=module, first=function.partition(".")[0], function=function)
            write(directory, "bin/" + command, text, 0o755)
    said = "".join("[{}]\n{}\n".format(group, "".join(lines)) for group, lines in groups.items())
    write(directory, about + "/entry_points.txt", said)
    sources = [os.path.join(root, str(each)) for each in project["sources"]]  # type: ignore[attr-defined]
    return [os.path.normpath(each) for each in sources or find_sources(root)]


def find_sources(root: str) -> list[str]:
    """Return the place of the packages of a project that does not say it."""
    src = os.path.join(root, "src")
    return [src if os.path.isdir(src) and not os.path.isfile(os.path.join(src, "__init__.py")) else root]


def write(directory: str, name: str, text: str, mode: int = 0o644) -> None:
    """Write a file as a whole: other nodes write the same one."""
    path = os.path.join(directory, name)
    draft = f"{path}.{os.uname().nodename}.{os.getpid()}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(draft, mode)
    os.replace(draft, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
