"""The names of tensors in another code base and here, as ``rename`` of the job file maps them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from jobs.contract.plans.base import PART


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``rename``; ``part`` of ``parts`` if several tensors there are one here."""

    there: str
    here: str
    part: int = 1
    parts: int = 1

    @classmethod
    def of(cls, there: str, here: str) -> Self:
        """Return the rule that an entry writes."""
        if match := PART.search(here):
            return cls(there, here[: match.start()], int(match[1]), int(match[2]))
        return cls(there, here)


def rules(rename: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return the rules in their order; the first that fits counts."""
    return tuple(Rule.of(there, here) for there, here in rename.items())


def replaced(name: str, old: str, new: str) -> str | None:
    """Return a name with its beginning replaced, None if it begins otherwise.

    A ``*`` stands for one part of a name between two dots, the same on both sides.
    """
    pattern = "([^.]+)".join(map(re.escape, old.split("*")))
    match = re.match(pattern, name)
    if match is None:
        return None
    found = iter(match.groups())
    begin = re.sub(r"\*", lambda _: next(found), new)
    return begin + name[match.end() :]


def here(name: str, known: Iterable[Rule]) -> tuple[str, Rule | None]:
    """Return the name here of a tensor there, and the rule that gives it."""
    for rule in known:
        if (found := replaced(name, rule.there, rule.here)) is not None:
            return found, rule
    return name, None


def there(name: str, known: Iterable[Rule]) -> Iterator[tuple[str, Rule]]:
    """Yield the names there of a tensor here: one, or one for each of its parts; none without a rule."""
    found = [(new, rule) for rule in known if (new := replaced(name, rule.here, rule.there)) is not None]
    if found and found[0][1].parts == 1:
        yield found[0]
        return
    yield from (each for each in found if each[1].parts == found[0][1].parts)
