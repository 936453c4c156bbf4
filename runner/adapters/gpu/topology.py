"""Which devices are joined: groups out of single links, for every vendor alike."""

from collections.abc import Iterable


def link_groups(kind: str, devices: Iterable[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the island of every device that a link joins to another one, directly or over others.

    What is no device, such as a switch, may be an end of a link.  An island is named after the first
    of its devices, so that it has the same name after every count.
    """
    leader: dict[str, str] = {}

    def first(of: str) -> str:
        while leader.get(of, of) != of:
            of = leader[of]
        return of

    for near, far in links:
        leader[first(far)] = first(near)
    groups: dict[str, list[str]] = {}
    for device in devices:
        groups.setdefault(first(device), []).append(device)
    return {each: f"{kind}-{group[0]}" for group in groups.values() if len(group) > 1 for each in group}
