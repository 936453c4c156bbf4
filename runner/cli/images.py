"""``runner images``: manage the images of jobs.  It calls the engine directly and needs no daemon."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from runner.base.errors import Unavailable
from runner.base.readable import readable_size
from runner.cli.console import complain, say, say_json, say_row, say_table
from runner.cli.parameters import CommandGroup, as_json, check_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from images.packages.values import Indexes
    from images.ports import Engine
    from images.prune import ImageRow
    from images.settings import Accelerator, ImageSettings

ACCELERATORS: Final = ("cpu", "cuda", "rocm")
COLUMNS: Final = ("IMAGE", "KIND", "FOR", "SIZE", "MADE", "USED", "OWNER", "CURRENT", "TAG")
GIB: Final = 1024**3


@click.group(cls=CommandGroup)
def images() -> None:
    """Build and maintain the images that jobs run in.

    The daemon builds missing images by itself. These commands need access to the engine's socket.
    """


@images.command()
@click.option("--tag", default="runner-base:bookworm", show_default=True, help="The tag of the image.")
@click.option("--suite", default="bookworm", show_default=True, help="The Debian release.")
@click.option("--mirror", metavar="URL", help="The Debian archive; by default the one that this host uses.")
@as_json
def bootstrap(*, tag: str, suite: str, mirror: str | None, as_json: bool) -> None:
    """Make a base image from Debian's archive, without a registry.

    Needs debootstrap and root, or mmdebstrap. Builds look for the default tag first.
    """
    from images.bootstrap import Bootstrap
    from images.bootstrap import bootstrap as make
    from images.log import BuildLog

    settings = _settings()
    with _explained("base image"), BuildLog(settings.cache_dir / "bootstrap.log", complain) as log:
        image = make(_engine(settings), Bootstrap(tag, suite, mirror), log)
    _answer({"tag": tag, "id": image}, as_json=as_json)


@images.command()
@click.argument("accelerator", type=click.Choice(ACCELERATORS), default="cpu")
@click.option(
    "--with",
    "requirements",
    metavar="FILE",
    callback=check_text,
    help="Add the packages of a requirements.txt, pyproject.toml or pylock.toml.",
)
@click.option("--name", metavar="NAME", callback=check_text, help="The tag of an image --with packages.")
@click.option(
    "--lock",
    metavar="LOCK",
    callback=check_text,
    help="What it installs, such as cuda-12.6; by default what the driver and the GPUs can run.",
)
@as_json
def build(
    *, accelerator: Accelerator, requirements: str | None, name: str | None, lock: str | None, as_json: bool
) -> None:
    """Build the image for an accelerator, unless it exists.

    With --with and --name, packages are added and the result gets the tag NAME:latest, for
    "allowed_images: {NAME: NAME:latest}" in the settings.
    """
    from dataclasses import replace

    from images.store import ImageStore
    from runner.adapters.image_locks import choose_for_this_machine

    if (requirements is None) != (name is None):
        raise click.UsageError("--with and --name go together")
    settings = _settings()
    if lock is not None:
        settings = replace(settings, locks={**settings.locks, accelerator: lock})
    log = settings.cache_dir / f"build-{accelerator}.log"
    store = ImageStore(settings, _engine(settings), complain, choose_for_this_machine)
    with _explained(f"image for {accelerator}", log):
        image = store.ensure(accelerator, log)
        if requirements is None or name is None:
            facts = {"accelerator": accelerator, "id": image, "digest": store.digest(accelerator)}
        else:
            from runner.cli.images_with import build_with

            facts = build_with(image, accelerator, requirements, name, log)
        _answer(facts, as_json=as_json)


@images.command()
@click.argument("name", callback=check_text)
@click.option(
    "--output", metavar="FILE", callback=check_text, help="Where to write it; - is standard output."
)
def lock(*, name: str, output: str | None) -> None:
    """Make the lock NAME for another version of CUDA or ROCm, such as cuda-12.6 or rocm-7.1.

    Needs the index of this build of torch (torch_indexes in the settings). The lock is written into the
    state directory; a new image gets the newest CUDA that the driver and the GPUs can run.
    """
    from pathlib import Path

    from images.make_lock import make_lock

    settings = _settings()
    with _explained("lock"):
        made = make_lock(name, settings, _indexes(settings))
    if output == "-":
        say(made.text.decode().rstrip())
        return
    place = Path(output) if output else (settings.lock_dir or settings.cache_dir) / f"{name}.txt"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(made.text)
    except OSError as error:
        raise Unavailable(f"{place}: {error.strerror}") from error
    say(str(place))


@images.command()
@click.argument("image", callback=check_text)
@as_json
def show(*, image: str, as_json: bool) -> None:
    """Show the Python, the torch and the packages of an IMAGE.

    IMAGE is an accelerator, a name of allowed_images, a tag or an id.
    """
    from runner.cli.images_with import show_image

    with _explained(f"image {image}"):
        show_image(image, as_json=as_json)


@images.command("list")
@as_json
def list_images(*, as_json: bool) -> None:
    """List the images made here, the newest first.

    New jobs get the images marked "current". In a pipe: id, kind, accelerator, bytes, made (UTC),
    "current" or "-", and tags, between tabs.
    """
    from images.prune import list_images

    settings = _settings()
    with _explained("images"):
        rows = list_images(_engine(settings), settings.cache_dir)
    objects = map(_facts, rows) if as_json else None
    say_table(COLUMNS, map(_table_cells, rows), map(_cells, rows), objects=objects)


@images.command()
@click.option("--dry-run", is_flag=True, help="Print the images, and remove nothing.")
@as_json
def prune(*, dry_run: bool, as_json: bool) -> None:
    """Remove and print the images that no new job gets and no container uses.

    Images that have a tag of yours, that allowed_images names or that the runner has not made from this
    state directory stay, and base images do.
    """
    from images import prune as pruning

    settings = _settings()
    act = pruning.find_unused if dry_run else pruning.prune
    with _explained("images"):
        rows = act(_engine(settings), settings.cache_dir, _allowed())
    for row in rows:
        if as_json:
            say_json(_facts(row))
        else:
            say_row(*_cells(row))


def _settings() -> ImageSettings:
    """Return the settings of this user's daemon, with its directory, so that both use the same locks."""
    from pathlib import Path

    from runner.client.autostart import state_dir
    from runner.files.settings.model import load_settings
    from runner.server.adapters import image_settings

    return image_settings(Path(state_dir(os.environ, os.geteuid())), load_settings(None))


def _indexes(settings: ImageSettings) -> Indexes:
    """Return the indexes of the operator for packages."""
    from runner.files.settings.model import load_settings
    from runner.server.packages import package_settings

    return package_settings(settings.cache_dir.parent, load_settings(None)).indexes


def _allowed() -> tuple[str, ...]:
    """Return the references of the images that the operator allows."""
    from runner.files.settings.model import load_settings

    return tuple(load_settings(None).allowed_images.values())


def _engine(settings: ImageSettings) -> Engine:
    from images.docker_engine import DockerEngine

    return DockerEngine(settings.engine_url)


@contextmanager
def _explained(thing: str, log: Path | None = None) -> Iterator[None]:
    """Convert the errors of ``images`` into messages for the user."""
    from images.errors import BuildFailed, EngineForbidden, EngineUnavailable
    from runner.base.errors import Refused

    try:
        yield
    except BuildFailed as error:
        where = f"; see {log}" if log else ""
        raise Unavailable(f"{thing}: {str(error).splitlines()[-1]}{where}") from error
    except EngineForbidden as error:
        fact = "which belongs to root and the daemon; runner submit needs no access to it"
        raise Refused(f"{error}, {fact}") from error
    except EngineUnavailable as error:
        raise Unavailable(f"{error}; scripts/engine starts one") from error


def _answer(facts: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        say_json(facts)
    else:
        say(facts["id"])


def _facts(row: ImageRow) -> dict[str, object]:
    return {
        "id": row.id,
        "kind": row.kind,
        "accelerator": row.accelerator,
        "digest": row.digest,
        "created": row.created,
        "size_bytes": row.size_bytes,
        "tags": list(row.tags),
        "current": row.current,
        "last_used": _moment(row.used_s),
        "owner": None if row.owner == "-" else int(row.owner),
    }


def _moment(seconds: float) -> str | None:
    """Return a Unix time as text in UTC."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}" if seconds else None


def _cells(row: ImageRow) -> tuple[object, ...]:
    current = "current" if row.current else None
    return row.id, row.kind, row.accelerator, row.size_bytes, row.created, current, ",".join(row.tags)


def _table_cells(row: ImageRow) -> tuple[str, ...]:
    size = readable_size(row.size_bytes)
    tag = next((tag for tag in row.tags if not tag.endswith(":current")), "-")
    current = "yes" if row.current else "-"
    used, owner = _moment(row.used_s) or "-", row.owner
    return row.id[7:19], row.kind, row.accelerator, size, row.created, used, owner, current, tag
