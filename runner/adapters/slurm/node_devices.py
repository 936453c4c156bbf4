"""Gives the container of an attempt the cards that Slurm has chosen for its job, on the node itself.

``python3 node_devices.py nvidia|amd CONFIG DIRECTORY...`` completes the ``config.json`` of a bundle.  It runs
as the job's user, with the Python of the node (3.9 or newer) and nothing but its standard library; a
specification in YAML needs ``python3-yaml`` there.  NVIDIA's cards are described by CDI specifications in the
directories, of which the last counts.

Nobody may make a mount point in an unpacked image, and hooks cannot write into it.  So what has no place in
the image is shown below ``/dev/cdi``, on which the container has an empty file system, and found by
``LD_LIBRARY_PATH`` and ``PATH``; libraries have the names that they have on the node.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

KIND = "nvidia.com/gpu"
PLACE = "/dev/cdi"
WRITES_LINKS = ("nvidia-cdi-hook", "nvidia-ctk")
"""Hooks that make links and a cache of libraries in the image, which is done here without writing."""

KNOWN = {"env", "deviceNodes", "mounts", "hooks", "additionalGids"}
CHOSEN = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables of Slurm with the numbers of cards on this node, of a step before those of its job."""

FILE = ["bind", "rprivate", "nosuid", "nodev", "ro"]
NODE = ["bind", "rprivate", "nosuid", "noexec", "rw"]


def main(arguments: list[str]) -> None:
    """Complete a configuration in its file.

    Raises:
        SystemExit: it cannot be; the text says why.
    """
    vendor, path, *directories = arguments
    config = json.loads(Path(path).read_text())
    cards = chosen_cards(os.environ)
    if vendor == "amd":
        config["mounts"] += list(amd_mounts(cards))
    else:
        for edits in nvidia_edits(*read_specifications(directories), cards):
            try:
                apply(edits, config)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                fact = f"{type(error).__name__}: {error}, in {json.dumps(edits)[:300]}"
                raise SystemExit(f"the CDI specification of this node is malformed ({fact})") from error
    Path(path).write_text(json.dumps(config))


def chosen_cards(variables: Mapping[str, str]) -> list[str]:
    """Return the cards of this job on this node, by number or UUID."""
    seen = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if seen[0].startswith(("GPU-", "MIG-")):
        return seen
    for name in CHOSEN:
        if variables.get(name):
            return variables[name].split(",")
    raise SystemExit("Slurm does not say which GPUs this job has (SLURM_JOB_GPUS)")


def read_specifications(directories: Iterable[str]) -> tuple[dict[str, tuple[Any, Any]], list[str]]:
    """Return the edits of each NVIDIA device by its name, with those of its whole specification.

    The second value are the files that cannot be read, which may be of other devices.
    """
    found: dict[str, tuple[Any, Any]] = {}
    unreadable = []
    for directory in directories:
        for path in sorted(Path(directory).glob("*")):
            if path.suffix in {".json", ".yaml"}:
                try:
                    content = _read(path)
                    if content.get("kind") == KIND:
                        common = content.get("containerEdits") or {}
                        found.update({str(each["name"]): (each, common) for each in content["devices"]})
                except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
                    unreadable.append(f"{path} ({type(error).__name__})")
    return found, unreadable


def _read(path: Path) -> Any:  # noqa: ANN401 - what the file says
    if path.suffix == ".json":
        return json.loads(path.read_text())
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415  not every node has it
    except ImportError:
        step = f"nvidia-ctk cdi generate --output={path.with_suffix('.json')}, or install python3-yaml"
        raise SystemExit(f"{path}: this node's Python reads no YAML; {step}") from None
    try:
        return yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(path) from error


def nvidia_edits(
    known: Mapping[str, tuple[Any, Any]], unreadable: Iterable[str], cards: Iterable[str]
) -> Iterator[Any]:
    """Yield the edits of the cards, and once those of the specification that they are from."""
    common = []
    for card in cards:
        if card not in known:
            there = ", ".join(sorted(known)) or "nothing"
            fact = f"no CDI specification of this node names {KIND}={card}; there is {there}"
            raise SystemExit("; not readable: ".join([fact, *unreadable]))
        device, whole = known[card]
        yield device.get("containerEdits") or {}
        if whole not in common:
            common.append(whole)
    yield from common


def apply(edits: Any, config: Any) -> None:  # noqa: ANN401 - as they are in files
    """Change the configuration of a container as a specification says."""
    if unknown := {name for name, value in edits.items() if value and name not in KNOWN}:
        raise SystemExit(f"the CDI specification has {', '.join(sorted(unknown))}, which is not understood")
    # The container keeps the groups of the user, and may be given no others.
    if missing := set(edits.get("additionalGids") or ()) - {0, os.getgid(), *os.getgroups()}:
        groups = ", ".join(map(str, sorted(missing)))
        raise SystemExit(f"the cards are for members of group {groups} on this node, and this user is none")
    variables = {each.partition("=")[0]: each for each in config["process"]["env"]}
    variables.update({each.partition("=")[0]: each for each in edits.get("env") or ()})
    for node in edits.get("deviceNodes") or ():
        config["mounts"].append(_mount(node["path"], node.get("hostPath") or node["path"], NODE))
    for mount in edits.get("mounts") or ():
        if mount.get("type") not in {None, "", "none", "bind"}:
            raise SystemExit(f"the CDI specification has a mount of {mount['type']}, which is not understood")
        for source, target in _names(mount["hostPath"], mount["containerPath"]):
            shown = _place(Path(config["root"]["path"]), target)
            config["mounts"].append(_mount(shown, source, FILE))
            if shown != target:
                name = "LD_LIBRARY_PATH" if ".so" in Path(target).name else "PATH"
                _extend(variables, name, str(Path(shown).parent))
    for hook in edits.get("hooks") or ():
        if Path(hook["path"]).name not in WRITES_LINKS:
            call = {name: value for name, value in hook.items() if name != "hookName"}
            config.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(call)
    config["process"]["env"] = list(variables.values())


def _names(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield a file with its place in the container, and again for each link to it beside it on this node."""
    yield source, target
    whole = Path(source)
    if ".so" in whole.name:
        for each in sorted(whole.parent.glob(f"{whole.name.partition('.so')[0]}.so*")):
            if each.is_symlink() and each.resolve() == whole.resolve():
                yield source, str(Path(target).with_name(each.name))


def _place(rootfs: Path, target: str) -> str:
    """Return the path at which a file is shown: at its own place if the image has one there."""
    return target if (rootfs / target.lstrip("/")).is_file() else f"{PLACE}{target}"


def _extend(variables: dict[str, str], name: str, directory: str) -> None:
    there = [each for each in variables.get(name, f"{name}=").partition("=")[2].split(":") if each]
    if directory not in there:
        variables[name] = f"{name}={':'.join([*there, directory])}"


def amd_mounts(cards: Iterable[str], kfd: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> Iterator[Any]:
    """Yield the device nodes of AMD's cards, which Slurm counts in the order of their render nodes."""
    minors = sorted(minor for path in kfd.glob("*/properties") if (minor := _render_minor(path)))
    yield _mount("/dev/kfd", "/dev/kfd", NODE)
    for card in cards:
        if not (card.isdigit() and int(card) < len(minors)):
            raise SystemExit(
                f"this node has {len(minors)} AMD GPUs, and Slurm's number {card} is none of them"
            )
        node = f"/dev/dri/renderD{minors[int(card)]}"
        yield _mount(node, node, NODE)


def _render_minor(path: Path) -> int:
    words = dict(line.split()[:2] for line in path.read_text().splitlines() if len(line.split()) > 1)
    return int(words.get("drm_render_minor", 0))


def _mount(target: str, source: str, options: list[str]) -> Any:  # noqa: ANN401 - as in the configuration
    return {"destination": target, "type": "bind", "source": source, "options": list(options)}


if __name__ == "__main__":
    main(sys.argv[1:])
