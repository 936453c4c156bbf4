"""The settings of notifications: on which events, about whose jobs, and by which channel."""

import hashlib
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jobs.contract import PluginRegistry, load_plugins, plugin_of_type
from runner.base.textfile import one_line, quoted
from runner.core.notification import TOPICS
from runner.core.ports.notifications import Channel
from runner.files.job.queue import one_or_more
from runner.files.settings.dashboard import check_web_address
from runner.files.types import ClosedModel
from runner.files.validation import did_you_mean

SENDMAIL: Final = "/usr/sbin/sendmail"
"""The program that takes mail; every mail system for Unix provides one."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Name of a topic, as ntfy takes it."""

_ADDRESS: Final = re.compile(r"[A-Za-z0-9._+=-]{1,64}(@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*)?")


OWN_LABEL: Final = "notify"
"""The label of a job whose value is where its owner wants to be told."""


def _words(value: tuple[str, ...]) -> tuple[str, ...]:
    for word in value:
        if word not in TOPICS:
            hint = did_you_mean(word, TOPICS) or "; docs/operate/notifications.md lists them"
            raise ValueError(f"there is no event {quoted(word)}{hint}")
    return value


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value) or value.startswith("-"):
        raise ValueError(f"must be one mail address, not {quoted(value)}")
    return value


def _argv(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value[0].startswith("/"):
        raise ValueError(f"must begin with the absolute path of a program, not {quoted(value[0])}")
    return value


def _allowed(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        if each.startswith("@"):
            _address(f"anybody{each}")
        elif not check_web_address(each).endswith("/"):
            raise ValueError(
                f'must be "@" and a domain, or a web address that ends in "/", not {quoted(each)}'
            )
    return value


Words = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_words), BeforeValidator(one_or_more)]
Argv = Annotated[tuple[str, ...], Field(min_length=1, max_length=64), AfterValidator(_argv)]


@cache
def channels() -> PluginRegistry[Channel]:
    """Return the channels of plug-ins."""
    return load_plugins("channels", {}, plugin_of_type(Channel))


def find_channel(name: str) -> Channel:
    """Return the channel of a name; may raise ValueError."""
    known = channels()
    if name not in known.found:
        why = known.why_not(name) or did_you_mean(name, tuple(known.found)) or "; no plug-in has it"
        raise ValueError(f"there is no channel {quoted(name)}{why}")
    return known.found[name]


class NotificationRule(ClosedModel):
    """One rule, with exactly one of ``webhook``, ``mail``, ``command``, ``channel`` and ``own``."""

    on: Words
    """Events, states or outcomes, such as ``failed``, ``held`` or ``alarm``."""

    who: Literal["all"] | tuple[str, ...] = "all"
    """The names of the owners whose jobs cause notifications, or ``all``."""

    webhook: Annotated[str, AfterValidator(check_web_address)] | None = None
    """The URL to which the notification is posted."""

    shape: Literal["json", "slack", "mattermost", "ntfy"] = "json"
    """Body of the webhook: the notification as JSON, or a message as one of these services takes it."""

    mail: Annotated[str, AfterValidator(_address)] | None = None
    """The address to which ``/usr/sbin/sendmail`` sends the notification."""

    command: Argv | None = None
    """The program that gets the notification on standard input; it runs as the daemon's user."""

    channel: str | None = None
    """The name of a channel that a plug-in has."""

    options: dict[str, str] = Field({}, max_length=32)
    """Values that the channel of a plug-in needs, such as an address."""

    own: Annotated[tuple[str, ...], Field(max_length=32), AfterValidator(_allowed)] = ()
    """Targets that jobs may name in their label ``notify``: mail of domains, and addresses that begin so."""

    @model_validator(mode="after")
    def _one_way(self) -> "NotificationRule":
        ways = (self.webhook, self.mail, self.command, self.channel, self.own or None)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("needs exactly one of webhook, mail, command, channel and own")
        if self.options and self.channel is None:
            raise ValueError("options need a channel")
        if self.webhook is None and not self.own and self.shape != "json":
            raise ValueError(f"shape {self.shape} needs a webhook")
        topic = urlsplit(self.webhook or "").path.rpartition("/")[2]
        if self.shape == "ntfy" and not self.own and not _TOPIC.fullmatch(topic):
            raise ValueError(
                "the webhook must end with a topic of ntfy, such as https://ntfy.example.org/gpu1"
            )
        return self

    @model_validator(mode="after")
    def _takes_options(self) -> "NotificationRule":
        if self.channel is not None:
            find_channel(self.channel).make(self.options)
        return self

    @property
    def digest(self) -> str:
        """Key that tells this rule from others and from itself before it was edited, across versions."""
        # As in earlier versions where nothing of what is newer is used
        newer: dict[str, object] = {"shape": "json", "channel": None, "options": {}, "own": ()}
        unset = {name for name, default in newer.items() if getattr(self, name) == default}
        return hashlib.sha256(self.model_dump_json(exclude=unset).encode()).hexdigest()[:16]

    def for_job(self, labels: Mapping[str, str]) -> "NotificationRule | None":
        """Return the rule for the address that a job names; None if it names none that is allowed."""
        said = labels.get(OWN_LABEL, "")
        try:
            if "://" not in said and f"@{_address(said).partition('@')[2]}" in self.own:
                return NotificationRule(on=self.on, mail=said)
            allowed = tuple(each for each in self.own if each[0] != "@")
            # servers decode a path before they resolve its dots
            if said.startswith(allowed) and "%" not in said and ".." not in said and "\\" not in said:
                return NotificationRule(on=self.on, webhook=said, shape=self.shape)
        except ValueError:
            return None
        return None

    @property
    def stranger(self) -> str:
        """Reason for which this process cannot start the program of the rule; empty if it can."""
        program = self.command[0] if self.command else SENDMAIL if self.mail or self._own_mail else None
        if program is None:
            return ""
        told = f"{'command' if self.command else 'mail'}: {one_line(program)}"
        if not Path(program).exists():
            return f"{told} does not exist; nothing is sent"
        fit = Path(program).is_file() and os.access(program, os.X_OK, effective_ids=True)
        return "" if fit else f"{told} is not a program that the daemon may execute; nothing is sent"

    @property
    def _own_mail(self) -> bool:
        return any(each.startswith("@") for each in self.own)

    @property
    def way(self) -> str:
        """The channel as the log names it, without the path of a webhook, which may be a secret."""
        if self.channel is not None:
            return f"channel {self.channel}"
        if self.own:
            return f"label {OWN_LABEL}"
        if self.webhook is not None:
            return f"webhook {urlsplit(self.webhook).hostname}"
        return f"mail {self.mail}" if self.mail is not None else f"command {(self.command or ('',))[0]}"
