"""Images with packages, for operators: ``runner images build --with`` and ``runner images show``."""

import os
from pathlib import Path

from images.errors import BuildFailed
from images.log import BuildLog
from images.packages.family import own_family
from images.packages.resolve import Unresolvable
from images.packages.store import PackageStore
from images.packages.values import Account, PythonFacts, Requirements
from images.settings import ACCELERATORS
from runner.base.textfile import read_source
from runner.cli.console import complain, on_terminal, say, say_json, say_row
from runner.client.autostart import state_dir
from runner.files.required import RequirementReader
from runner.files.settings.model import load_settings
from runner.server.packages import package_settings
from runner.services.submission.packages import find_error, refuse_mistakes


def build_with(image: str, accelerator: str, requirements: str, name: str, log: Path) -> dict[str, str]:
    """Add packages to an image, give the result a tag, and return what was made.

    Raises:
        FileError: at the line of a requirement that cannot be had.
        BuildFailed: a wheel cannot be had.
    """
    path = Path(requirements).absolute()
    collected = RequirementReader(lambda each: read_source(each, "requirements"), path.parent).read(path.name)
    refuse_mistakes(collected, path)
    store = _store()
    lines = tuple(each.line.requirement for each in collected.lines)
    constraints = tuple(each.line.requirement for each in collected.constraints)
    known = next(each for each in ACCELERATORS if each == accelerator)
    wanted = Requirements(lines, constraints, own_family(lines, store.facts(image)), known)
    with BuildLog(log, complain) as output:
        try:
            lock = store.resolve(wanted, image, _account(), output)
        except Unresolvable as error:
            raise find_error(collected, str(error), path) from error
        made = store.ensure(lock.text, image, known, output)
    store.engine().tag(made, tag := f"{name}:latest")
    return {
        "accelerator": accelerator,
        "id": made,
        "tag": tag,
        "setting": f"allowed_images: {{{name}: {tag}}}",
    }


def show_image(reference: str, *, as_json: bool) -> None:
    """Print the Python and the packages of an image.

    Raises:
        BuildFailed: the engine has none of this name, or it has no Python.
    """
    store, image = _store(), _find(reference)
    found = store.engine().image(image)
    if found is None:
        raise BuildFailed(f"image {reference}: is not in the engine; runner images list")
    facts = store.facts(found.id)
    torch = facts.versions.get("torch")
    if as_json:
        about = {"id": found.id, "tags": list(found.tags), "size_bytes": found.size_bytes}
        say_json({**about, "python": facts.python, "torch": torch, "packages": dict(facts.versions)})
        return
    if on_terminal():
        say(f"image {found.id[7:19]}: Python {facts.python} on {facts.machine}, torch {torch or 'none'}")
    _say_packages(facts)


def _say_packages(facts: PythonFacts) -> None:
    for each in facts.installed:
        say_row(each.name, each.version)


def _find(reference: str) -> str:
    """Return the reference of an image by an accelerator, a name of the operator, a tag or an id."""
    if reference in ACCELERATORS:
        return f"runner-{reference}:current"
    return load_settings(None).allowed_images.get(reference, reference)


def _store() -> PackageStore:
    settings = load_settings(None)
    directory = Path(state_dir(os.environ, os.geteuid()))
    from images.docker_engine import DockerEngine

    return PackageStore(package_settings(directory, settings), lambda: DockerEngine(settings.engine))


def _account() -> Account | None:
    run_as = load_settings(None).root_jobs_run_as
    return Account(run_as.uid, run_as.gid) if os.geteuid() == 0 else None
