"""The account of a job in words, for the terminal and for its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runner.base.readable import readable_duration, readable_size

if TYPE_CHECKING:
    from runner.client.types import AccountResponse

TRAFFIC: Final = {
    "disk_read_per_s": "disks read",
    "disk_written_per_s": "disks written",
    "network_received_per_s": "network received",
    "network_sent_per_s": "network sent",
}
"""The names of rates in an account, in words."""


def time_text(account: AccountResponse | None) -> str:
    """Return the share of work in the time since a job's submission, and the use of the rest."""
    if not account or account["time"]["goodput"] is None:
        return ""
    time = account["time"]
    parts = {"waiting": time["waiting_s"], "starting": time["starting_s"], "saving": time["saving_s"]}
    rest = ", ".join(
        f"{name} {'unknown' if spent is None else readable_duration(spent)}"
        for name, spent in {**parts, "lost": time["lost_s"]}.items()
    )
    return f"{100 * (time['goodput'] or 0.0):.0f} % work of {readable_duration(time['total_s'])}; {rest}"


def used_text(account: AccountResponse | None) -> str:
    """Return the use of a job beside its request, with advice where that is much less."""
    if not account:
        return ""
    asked, used, found = account["asked"], account["used"], list[str]()
    if memory := used["memory_bytes"]:
        peak, mean, most = (
            readable_size(each) for each in (memory["peak"], memory["mean"], asked["memory_bytes"])
        )
        found.append(f"memory {peak} of {most}, {mean} on average")
    if cpus := used["cpus"]:
        found.append(f"CPUs {cpus['peak']:.2g} of {asked['cpus']:g}, {cpus['mean']:.2g} on average")
    for name, device in used["devices"].items():
        if device:
            found.append(f"{name} {device['peak']:.3g} at most, {device['mean']:.3g} on average")
    for name, words in TRAFFIC.items():
        if (rate := used.get(name)) and rate["peak"]:
            found.append(f"{words} {readable_size(rate['peak'])}/s at most")
    if asked["gpus"]:
        energy_wh = used.get("energy_wh")
        found.append("energy unknown" if energy_wh is None else f"energy {energy_wh:.4g} Wh")
    return "; ".join([*found, *account["advice"]])
