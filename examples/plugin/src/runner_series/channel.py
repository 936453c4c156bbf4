"""A channel: notifications as lines of a file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from runner.core.notification import Notification
from runner.core.ports.notifications import Channel, Origin


def make(options: Mapping[str, str]) -> Callable[[Notification, Origin], None]:
    """Return the delivery that appends each notification to the file that the rule names.

    Raises:
        ValueError: the options are not one absolute path.
    """
    if options.keys() != {"path"} or not Path(options["path"]).is_absolute():
        raise ValueError("options must be {path: an absolute path}")

    def deliver(notification: Notification, origin: Origin) -> None:
        with Path(options["path"]).open("a", encoding="utf-8") as file:
            file.write(f"{origin.host}: {notification.subject}\n")

    return deliver


FILE: Final = Channel(make)
