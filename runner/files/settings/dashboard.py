"""The section ``dashboard`` of the settings: where the operator's dashboard is."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from runner.base.textfile import quoted
from runner.files.types import ClosedModel


def check_web_address(value: str) -> str:
    """Return an address that begins with ``http://`` or ``https://`` and names a host."""
    try:
        parts = urlsplit(value)
        right = bool(parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0)
    except ValueError:  # a port that is no number
        right = False
    if not right or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"must be an http or https address, not {quoted(value)}")
    return value


def _dashboard_url(value: str) -> str:
    parts = urlsplit(check_web_address(value))
    if "@" in parts.netloc:
        raise ValueError("must have no user and password; everybody who is notified reads it")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"must end after the name and the port; pages begin at /, not {quoted(value)}")
    return f"{parts.scheme}://{parts.netloc}"


class DashboardSettings(ClosedModel):
    """Address of the dashboard of the operator (docs/howto/dashboard.md)."""

    url: Annotated[str, Field(max_length=1000), AfterValidator(_dashboard_url)] | None = None
    """The address at which people open it, such as ``https://jobs.lab.example``; notifications link to the
    pages of jobs there.  None: no links."""
