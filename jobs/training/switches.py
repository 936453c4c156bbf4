"""What became of every switch of a profile: requested, applied, verified.

A switch that nobody mentions had no use here, and the report says so: a requested setting
that silently does nothing is how a promised speed-up goes unmeasured.
"""

from collections.abc import Mapping

from jobs.contract import SWITCHES, Profile, Switch

Value = str | int | float | bool | None


class Switches:
    """A profile's switches, and what those who act on them have said about each."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._applied: dict[str, Switch] = {}

    def applied(
        self, name: str, value: Value = None, *, verified: bool | None = None, note: str = ""
    ) -> None:
        """Record that a switch is in force; ``value`` is left out where it is the requested one.

        ``verified`` is True where the effect was seen, None where it cannot be seen from here.
        """
        requested = self._requested(name)
        self._applied[name] = Switch(
            requested=requested,
            applied=requested if value is None else _text(value),
            verified=verified,
            note=note[:1000],
        )

    def fell_back(self, name: str, value: Value, why: str) -> None:
        """Record that something else is in force than what was asked for."""
        self._applied[name] = Switch(
            requested=self._requested(name), applied=_text(value), verified=True, note=why[:1000]
        )

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """One line for each switch that is not in force as requested."""
        return tuple(
            f"{name} {switch.requested}: using {switch.applied}: {switch.note}"
            for name, switch in self._applied.items()
            if switch.applied != switch.requested and switch.note
        )

    def report(self) -> Mapping[str, Switch]:
        """Return every switch, those that nobody mentioned as not used."""
        unused = {name: Switch(requested=self._requested(name)) for name in SWITCHES}
        return unused | self._applied

    def _requested(self, name: str) -> str:
        return _text(getattr(self.profile, name))


def _text(value: Value) -> str:
    """Return a value as YAML and JSON write it."""
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )
