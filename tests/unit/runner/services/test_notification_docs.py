"""The pages about notifications and schedules, held against what the code does."""

import json
import re
from datetime import timedelta
from pathlib import Path

from runner.adapters.chat import MATTERMOST_CHARACTERS, NTFY_BYTES, SHAPES, SLACK_CHARACTERS, URGENT
from runner.adapters.notify import LIMIT_S, PROGRAM_LIMIT_S
from runner.adapters.sqlite.schedules import SHOWN
from runner.core.notification import ALARMS, DECISIONS, FIELDS, TOPICS
from runner.core.schedule import ON_TIME
from runner.files.settings.model import Settings
from runner.files.settings.notify import SENDMAIL, NotificationRule
from runner.services.notifications import MAX_AGE, MAX_TRIES, MAX_WAIT_S, PERIOD_S
from runner.services.schedules.service import MAX_PER_USER
from runner.services.schedules.trigger import LABEL, RETRY_FIRING_S

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "operate/notifications.md").read_text(encoding="utf-8")
HOWTO = (DOCS / "howto/schedule.md").read_text(encoding="utf-8")


def first_cells(after: str) -> set[str]:
    """Return the words between backquotes in the first column of the table that follows."""
    section = PAGE[PAGE.index(after) :]
    [rows] = re.findall(r"\A(?:(?!^\|).)*?((?:^\|[^\n]*\n)+)", section, re.MULTILINE | re.DOTALL)
    return {word for row in rows.splitlines()[2:] for word in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_word_that_can_be_asked_for_is_on_the_page_and_no_other() -> None:
    assert first_cells("## What can be asked for") == TOPICS


def test_what_stands_for_several_events_names_them_all() -> None:
    rows = {row.split("|")[1].strip(): row for row in PAGE.splitlines() if row.startswith("| `")}
    assert all(f"`{word}`" in rows["`decision`"] for word in DECISIONS)
    assert all(f"`{word}`" in rows["`alarm`"] for word in ALARMS)


def test_every_field_of_a_rule_and_of_a_notice_is_on_the_page() -> None:
    assert first_cells("| field | default") == set(NotificationRule.model_fields)
    assert first_cells("## What is sent") == set(FIELDS)
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert tuple(json.loads(example)) == FIELDS


def test_the_example_is_right(tmp_path: Path) -> None:
    from runner.files.settings.model import load_settings

    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "settings.yaml"
    path.write_text(example)
    assert len(load_settings(path).notify) == 4
    [example] = re.findall(r'```yaml title="settings.yaml"\n(.*?)```', PAGE, re.DOTALL)
    path.write_text(example)
    settings = load_settings(path)
    assert [rule.shape for rule in settings.notify] == ["slack", "mattermost", "ntfy"]
    assert settings.dashboard.url == "https://jobs.lab.example"


def test_the_shapes_and_their_limits_are_the_real_ones() -> None:
    assert first_cells("| shape | `webhook`") == SHAPES.keys() - {"json"}
    assert f"at most {SLACK_CHARACTERS} characters" in PAGE
    assert f"at most {MATTERMOST_CHARACTERS} characters" in PAGE
    assert f"at most {NTFY_BYTES} bytes" in PAGE
    assert all(
        f"`{topic}`" in PAGE.partition("high priority for")[2].partition("For a topic")[0] for topic in URGENT
    )


def test_the_numbers_are_the_real_ones() -> None:
    assert (timedelta(days=1), 1, 60) == (MAX_AGE, PERIOD_S, MAX_WAIT_S)
    assert f"answer in {LIMIT_S:g} s" in PAGE
    assert f"not done after {PROGRAM_LIMIT_S:g} s), {MAX_TRIES} times" in PAGE
    assert f"`{SENDMAIL}`" in PAGE
    limit = Settings.model_fields["notify"].metadata[0].max_length
    assert f"at most {limit} rules" in PAGE


def test_the_numbers_of_schedules_are_the_real_ones() -> None:
    assert timedelta(minutes=1) == ON_TIME
    assert "Up to a minute late is on time" in HOWTO
    assert f"tried again every {RETRY_FIRING_S:g} s" in HOWTO
    assert f"the last {SHOWN} times" in HOWTO
    assert f"can have {MAX_PER_USER} schedules" in HOWTO
    assert f"`{LABEL}: 1`" in HOWTO
