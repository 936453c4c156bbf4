"""Check that docstrings say what they mean, and that a class name means one thing in a package.

A docstring that begins with a question word ("Whether …", "Return what … holds") makes its reader solve a
riddle before he knows the subject.  Only imports tell classes of one name in two modules of a package apart.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGES: Final = ("gpu_job_runner", "runner", "jobs", "images")
FOLDERS: Final = (*PACKAGES, "scripts", "tests", "bench", "examples")
RIDDLE: Final = re.compile(
    r"\s*((return|yield)s? )?(if|what|where|who|whose|whom|whether|how|which|why|when)(ever)?\b",
    re.IGNORECASE,
)
SUPPRESSION: Final = re.compile(
    r"#\s*(noqa|type:\s*ignore|pragma:\s*no cover|pylint:\s*disable|fmt:\s*off)\b"
)
MOST_PERCENT: Final = 2.0
SAME_MEANING: Final = {"Attached"}
"""The callback for either library."""


def riddles(source: str) -> tuple[list[tuple[int, str]], int]:
    """Return line and text of each docstring that begins with a question word, and the number of all."""
    found, total = [], 0
    for line, text in docstrings(ast.parse(source)):
        total += 1
        if RIDDLE.match(text):
            found.append((line, text.strip().splitlines()[0]))
    return found, total


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring: of a module, class or function, and of an attribute below it."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        described = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in body:
            if described and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text
            described = isinstance(statement, ast.Assign | ast.AnnAssign)


def homonyms(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the public top-level classes with one name in several modules of a package, with their paths."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[path.partition("/")[0], node.name].append(path)
    return {name: paths for (_, name), paths in places.items() if len(paths) > 1 and name not in SAME_MEANING}


def problems(sources: dict[str, str]) -> Iterator[str]:
    """Yield one line for each homonym, and for each riddle if there are too many of them."""
    yield from (
        f"class {name} has two meanings: {', '.join(paths)}; rename one"
        for name, paths in homonyms({p: s for p, s in sources.items() if p.startswith(PACKAGES)}).items()
    )
    looked = {path: riddles(source) for path, source in sources.items()}
    found = [f"{path}:{line}: {text}" for path, (lines, _) in looked.items() for line, text in lines]
    total = sum(count for _, count in looked.values())
    if len(found) * 100 > MOST_PERCENT * total:
        yield from found
        yield f"{len(found)} of {total} docstrings begin with a question word; begin with a verb or a noun"


def rates(sources: dict[str, str]) -> str:
    """Return a row of the table in provenance/prose.md: the rates of one project, for comparison."""
    looked = [riddles(source) for source in sources.values()]
    told, total = sum(len(found) for found, _ in looked), sum(count for _, count in looked)
    lines = sum(source.count("\n") for source in sources.values())
    silenced = sum(len(SUPPRESSION.findall(source)) for source in sources.values())
    return (
        f"{len(sources)} | {lines} | {total} | {100 * told / max(total, 1):.1f} % | {len(homonyms(sources))}"
        f" | {1000 * silenced / max(lines, 1):.1f}"
    )


def main(others: list[str]) -> int:
    """Print what is wrong in the repository, or the rates of the folders that are named."""
    for folder in others:
        known = {path.relative_to(folder).as_posix(): path.read_text() for path in Path(folder).rglob("*.py")}
        print(f"| {Path(folder).name} | {rates(known)} |")
    if others:
        return 0
    files = (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py")))
    told = list(problems({path.as_posix(): path.read_text() for path in files}))
    print("\n".join(told), end="\n" if told else "")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
