"""Finds all mistakes of requirements: what the resolver blames is left out, and it is asked again.

A resolver says why there is no solution, once.  A file may have several packages that cannot be had, and who
wrote it should hear of all of them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from images.errors import BuildFailed
from images.packages.lock import Lock
from images.packages.resolve import Unresolvable
from images.packages.values import Requirements

MOST: Final = 9
"""Further mistakes that are looked for; each takes a resolution."""

MAX_REASON: Final = 10_000
"""Characters of a reason that are searched."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def resolve_telling_all(
    resolve: Callable[[Requirements], Lock], again: Callable[[Requirements], Lock], wanted: Requirements
) -> Lock:
    """Return the lock of requirements.

    Args:
        resolve: Returns the lock.
        again: The same for requirements of which some are left out; builds nothing.
        wanted: The requirements.

    Raises:
        Unresolvable: they have no solution; it has the reasons of further requirements.
    """
    try:
        return resolve(wanted)
    except Unresolvable as error:
        error.more = tuple(_further_reasons(again, wanted, str(error)))
        raise


def _further_reasons(
    again: Callable[[Requirements], Lock], wanted: Requirements, reason: str
) -> Iterator[str]:
    for _ in range(MOST):
        rest = without_blamed(wanted, reason)
        if rest is None or not rest.lines:
            return
        wanted = rest
        try:
            again(wanted)
        except Unresolvable as error:
            if error.unbuilt is not None:  # a package that is built, which may be no mistake
                return
            reason = str(error)
            yield reason
        except BuildFailed:  # the index does not answer any more; the first reason is what counts
            return
        else:
            return


def without_blamed(wanted: Requirements, reason: str) -> Requirements | None:
    """Return requirements without the package that a reason blames, None if it names none of them."""
    names = [*dict.fromkeys(filter(None, map(_name, wanted.lines)))]
    said = reason[:MAX_REASON].lower().replace("_", "-")
    required = [_normal(each) for each in re.findall(r"you require ([A-Za-z0-9][A-Za-z0-9._-]*)", reason)]
    words = {word.rstrip(".") for word in re.findall(r"[a-z0-9.-]+", said)}
    mentioned = [name for name in names if name in words]
    blamed = next((name for name in (*required, *mentioned) if name in names), None)
    if blamed is None:
        return None
    return replace(wanted, lines=tuple(line for line in wanted.lines if _name(line) != blamed))


def _name(line: str) -> str:
    found = _NAME.match(line)
    return "" if found is None else _normal(found[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower().rstrip("-")
