"""The documentation as a static site: ``python -m scripts.docs.site``, or ``make docs``.

The pages are prepared in a folder of their own and built there by Zensical in strict mode, which refuses dead
links and anchors.  Preparing means: the pages in the root of the repository join those below ``docs``, files
that a page links to are copied beside it, and Mermaid diagrams become pictures, so that reading the site
needs no script and no network.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
STAGE: Final = ROOT / ".make" / "site"
SITE: Final = ROOT / "build" / "docs"
FROM_THE_ROOT: Final = {
    "README.md": "docs/index.md",
    "CONTRIBUTING.md": "docs/contributing.md",
    "CHANGELOG.md": "docs/changelog.md",
}
"""Pages outside of ``docs``, and where the site has them; the README is represented by the start page."""

LINK: Final = re.compile(r"\]\(([^)\s#]+)((?:#[^)\s]*)?)\)")
FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE: Final = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//"
    r"|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload|icon)\b[^>]*//",
)


class SiteError(Exception):
    """The site cannot be built from these pages."""


def place_of(target: str) -> str:
    """Return the place of a file of the repository in the site; both are paths from the root."""
    if target in FROM_THE_ROOT:
        return FROM_THE_ROOT[target]
    return target if target.startswith("docs/") else f"docs/files/{target}"


def relink(text: str, page: str, copy: Callable[[str], None]) -> str:
    """Return the text of a page with its links as the site needs them.

    ``copy`` is given each file that the page links to.
    """

    def moved(match: re.Match[str]) -> str:
        target, anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match.group()
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))  # noqa: PTH118, PTH120
        if not (ROOT / path).exists():
            raise SiteError(f"{page}: the link to {target} leads nowhere")
        if not path.endswith(".md"):
            copy(path)
        return f"]({os.path.relpath(place_of(path), os.path.dirname(place_of(page)))}{anchor})"  # noqa: PTH120

    def outside_of_code() -> Iterator[str]:
        end = 0
        for fence in FENCE.finditer(text):
            yield LINK.sub(moved, text[end : fence.start()])
            yield fence.group()
            end = fence.end()
        yield LINK.sub(moved, text[end:])

    return "".join(outside_of_code())


def draw(text: str, page: str, picture: Callable[[str, str], None]) -> str:
    """Return the text of a page with pictures in place of its Mermaid diagrams.

    ``picture`` is given the name of each picture and the diagram.
    """

    def drawn(match: re.Match[str]) -> str:
        language, diagram = match.groups()
        if language != "mermaid":
            return match.group()
        name = f"docs/images/{hashlib.sha256(diagram.encode()).hexdigest()[:16]}.svg"
        picture(name, diagram)
        return f"![diagram]({os.path.relpath(name, os.path.dirname(page))})"  # noqa: PTH120

    return FENCE.sub(drawn, text)


def pages() -> list[str]:
    """Return the paths of all pages, from the root of the repository."""
    below = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return [*below, *(name for name in FROM_THE_ROOT if name != "README.md")]


def navigated(nav: object) -> Iterator[str]:
    """Yield the pages that a navigation leads to."""
    match nav:
        case str():
            yield nav
        case list():
            for each in nav:
                yield from navigated(each)
        case dict():
            yield from navigated(list(nav.values()))
        case _:
            raise SiteError(f"zensical.toml: {nav!r} is no part of a navigation")


def check_navigation() -> None:
    """Raise unless the navigation leads to every page once."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    listed = sorted(navigated(config["project"]["nav"]))
    there = sorted(place_of(page).removeprefix("docs/") for page in pages())
    if listed != there:
        differing = ", ".join(
            sorted({*listed} ^ {*there}) or sorted({p for p in listed if listed.count(p) > 1})
        )
        raise SiteError(f"zensical.toml: the navigation must list each page once; look at {differing}")


def stage() -> None:
    """Prepare the pages, their files and their diagrams below ``STAGE``."""
    from mermaidx import render

    def copy(path: str) -> None:
        if path.startswith("docs/"):
            return  # it is there already
        to = STAGE / place_of(path)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, to)

    def picture(name: str, diagram: str) -> None:
        to = kept / Path(name).name
        if not to.exists():
            to.write_text(render(diagram, theme="neutral").svg(), encoding="utf-8")
        shutil.copyfile(to, STAGE / name)

    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", STAGE / "docs", ignore=shutil.ignore_patterns("*.md"))
    kept = STAGE.parent / "diagrams"  # drawing one takes seconds
    kept.mkdir(exist_ok=True)
    for page in pages():
        text = relink((ROOT / page).read_text(encoding="utf-8"), page, copy)
        to = STAGE / place_of(page)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(draw(text, place_of(page), picture), encoding="utf-8")
    shutil.copyfile(ROOT / "zensical.toml", STAGE / "zensical.toml")


def check_built(site: Path) -> None:
    """Raise if a page of the built site loads anything from another host."""
    for path in sorted(site.rglob("*.html")):
        found = ELSEWHERE.search(path.read_text(encoding="utf-8"))
        if found:
            raise SiteError(f"{path.relative_to(site)}: loads something from elsewhere: {found.group()}")


def main() -> None:
    check_navigation()
    stage()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=STAGE, check=False).returncode:
        raise SiteError("the build has failed; its warnings are above")
    check_built(STAGE / "site")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(STAGE / "site", SITE)
    print(f"the site is in {SITE.relative_to(ROOT)}: open index.html")


if __name__ == "__main__":
    try:
        main()
    except SiteError as error:
        sys.exit(f"docs: {error}")
