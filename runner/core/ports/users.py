"""Users of the host: who owns a job, and who asks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """Who asked for a job, and as whom it runs: both numbers, always."""

    uid: int
    gid: int
    name: str


@dataclass(frozen=True, slots=True)
class User:
    """Whoever asked: uid, primary gid and supplementary groups, from the host's own records."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
