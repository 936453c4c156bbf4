"""Groups devices by their direct links (NVLink, xGMI), for every vendor."""

from collections.abc import Iterable


def link_groups(kind: str, devices: Iterable[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the link group of each device that is linked to another one, directly or through others.

    An end of a link may be something else than a device, such as a switch.  A group is named after the first
    of its devices, so it has the same name after each enumeration.
    """
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.get(node, node) != node:
            node = parent[node]
        return node

    for near, far in links:
        parent[root(far)] = root(near)
    groups: dict[str, list[str]] = {}
    for device in devices:
        groups.setdefault(root(device), []).append(device)
    return {each: f"{kind}-{group[0]}" for group in groups.values() if len(group) > 1 for each in group}
