"""The port to the network of attempts that may reach the outside."""

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

NetworkAccess: TypeAlias = Literal["none", "outbound"]
"""Reach of an attempt: nothing but itself, or the outside of this host."""


@dataclass(frozen=True, slots=True)
class NetworkState:
    """State of the outbound network; ``problem`` says why it does not hold, or is empty."""

    holds: bool | None  # None: it has not been examined yet
    problem: str = ""


class OutboundNetwork(Protocol):
    """A network of the engine whose containers reach the outside, and nothing of this host."""

    @property
    def name(self) -> str:
        """Return the name of the network in the engine; it need not exist yet."""

    @property
    def dns(self) -> tuple[str, ...]:
        """Return the name servers of its containers; none: those of the engine."""

    @property
    def is_for_all(self) -> bool:
        """Return True if jobs that were submitted before they could name a network are in it."""

    def state(self) -> NetworkState:
        """Return the result of the last examination; does not block."""

    def prepare(self) -> str:
        """Make the network if it does not exist, examine it, and return its name; blocks.

        Raises:
            Refused: something that must be closed may be open, and the settings require that it is closed.
            Unavailable: the engine does not answer.
        """

    def close(self) -> None:
        """Remove the network if no container is in it."""


NOT_SEPARATED: Final = "attempts are processes of this host, and have its network"
"""Reason for which a network is of no use where attempts have no containers."""
