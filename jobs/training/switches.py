"""The state of every switch of a profile: requested, applied, verified.

A switch that no part of the trainer records has no effect in this training.  The report lists it
as not used, so that a requested setting without effect is visible.
"""

from collections.abc import Mapping

from jobs.contract import SWITCHES, Profile, Switch, Trace

Value = str | int | float | bool | Trace | None


class Switches:
    """A profile's switches, with the state that the parts of the trainer record for each."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._applied: dict[str, Switch] = {}
        self._chosen: set[str] = set()  # switches with the value auto, which came to something as it should

    def applied(
        self, name: str, value: Value = None, *, verified: bool | None = None, note: str = ""
    ) -> None:
        """Record that a switch is in force; ``value`` is omitted if it is the requested one.

        ``verified`` is True if the effect was observed, and None if it cannot be observed here.
        """
        requested = self._requested(name)
        self._applied[name] = Switch(
            requested=requested,
            applied=requested if value is None else _text(value),
            verified=verified,
            note=note[:1000],
        )

    def chosen(self, name: str, value: Value, why: str) -> None:
        """Record the value that an automatic switch came to, and how."""
        self.applied(name, value, verified=True, note=why)
        self._chosen.add(name)

    def fell_back(self, name: str, value: Value, why: str) -> None:
        """Record that a value other than the requested one is in force, and why."""
        self._chosen.discard(name)
        self._applied[name] = Switch(
            requested=self._requested(name), applied=_text(value), verified=True, note=why[:1000]
        )

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Return one line for each switch that is not in force as requested."""
        return tuple(
            f"{name} {switch.requested}: using {switch.applied}: {switch.note}"
            for name, switch in self._applied.items()
            if switch.applied != switch.requested and switch.note and name not in self._chosen
        )

    def report(self) -> Mapping[str, Switch]:
        """Return every switch; those without a record are marked as not used."""
        unused = {name: Switch(requested=self._requested(name)) for name in SWITCHES}
        return unused | self._applied

    def _requested(self, name: str) -> str:
        return _text(getattr(self.profile, name))


def _text(value: Value) -> str:
    """Return a value in the notation of YAML and JSON."""
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )
