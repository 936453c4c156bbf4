"""Detection of requirements that ask for another torch than the one that the image holds."""

from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.packages.values import FAMILY, PythonFacts


def own_family(lines: Iterable[str], facts: PythonFacts) -> frozenset[str]:
    """Return the packages of torch's family that are asked for in a version which the image does not hold.

    A package of the family that the image lacks altogether fits if its own requirements fit.
    """
    held = facts.versions
    there = {"python_version": facts.python, "platform_machine": facts.machine}
    there["python_full_version"] = facts.full_python
    found = set()
    for line in lines:
        try:
            wanted = Requirement(line)
            applies = wanted.marker is None or wanted.marker.evaluate(there)
        except ValueError:  # the resolver tells what is wrong with it
            continue
        name = canonicalize_name(wanted.name)
        if (
            applies
            and name in FAMILY
            and name in held
            and not wanted.specifier.contains(held[name], prereleases=True)
        ):
            found.add(name)
    return frozenset(found)
