"""The address of an image changes with everything that matters, and with nothing else."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from images.context import entries_below
from images.digest import digest, tag
from images.recipe import Entry, Recipe

RECIPE = Recipe(
    kind="job",
    accelerator="cpu",
    below="sha256:1",
    dockerfile="FROM x\n",
    arguments=(("A", "1"), ("B", "2")),
    platform="linux/amd64",
    builder="engine",
    entries=(Entry("jobs/a.py", b"a"), Entry("jobs/b.py", b"b")),
)


@pytest.mark.parametrize(
    "other",
    [
        replace(RECIPE, kind="environment"),
        replace(RECIPE, accelerator="cuda"),
        replace(RECIPE, below="sha256:2"),
        replace(RECIPE, dockerfile="FROM y\n"),
        replace(RECIPE, arguments=(("A", "1"), ("B", "3"))),
        replace(RECIPE, platform="linux/arm64"),
        replace(RECIPE, builder="classic"),
        replace(RECIPE, entries=RECIPE.entries[:1]),
        replace(RECIPE, entries=(Entry("jobs/a.py", b"A"), RECIPE.entries[1])),
        replace(RECIPE, entries=(Entry("jobs/a.py", b"a", executable=True), RECIPE.entries[1])),
        replace(RECIPE, entries=(Entry("jobs/c.py", b"a"), RECIPE.entries[1])),
    ],
)
def test_whatever_matters_gives_another_address(other: Recipe) -> None:
    assert digest(other) != digest(RECIPE)


def test_order_does_not_matter() -> None:
    turned = replace(RECIPE, entries=RECIPE.entries[::-1], arguments=RECIPE.arguments[::-1])
    assert digest(turned) == digest(RECIPE)


def test_times_permissions_and_caches_do_not_matter(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("pass")
    before = digest(replace(RECIPE, entries=entries_below(tmp_path, "jobs")))
    os.utime(source, (1, 1))
    source.chmod(0o600)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"\0")
    assert digest(replace(RECIPE, entries=entries_below(tmp_path, "jobs"))) == before


def test_the_executable_bit_matters(tmp_path: Path) -> None:
    source = tmp_path / "entry.sh"
    source.write_text("true")
    before = digest(replace(RECIPE, entries=entries_below(tmp_path, "jobs")))
    source.chmod(0o755)
    assert digest(replace(RECIPE, entries=entries_below(tmp_path, "jobs"))) != before


def test_tags_of_environments_and_jobs_differ() -> None:
    assert tag("job", "cpu", "0123456789abcdef99") == "runner-cpu:h-0123456789abcdef"
    assert tag("environment", "cpu", "0123456789abcdef99") == "runner-cpu-environment:h-0123456789abcdef"
