import re

import pytest

from runner.cli.main import COMMANDS, EXIT_CODES
from runner.core.policy.catalog import FACTS
from scripts.docs.__main__ import PAGES, remade
from scripts.docs.page import DOCS, MARKER, ROOT, fill, regenerate


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_every_generated_page_is_up_to_date(name: str) -> None:
    assert remade(name) == (ROOT / name).read_text(encoding="utf-8"), "run: make docs-reference"


def test_what_stands_above_the_marker_is_kept_and_the_rest_replaced() -> None:
    assert regenerate(f"# by hand\n\n{MARKER}\nold\n", "new\n") == f"# by hand\n\n{MARKER}\n\nnew\n"


def test_a_page_without_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no line <!-- generated"):
        regenerate("# by hand\n", "new\n")


def test_a_named_block_is_replaced_and_the_text_around_it_kept() -> None:
    page = "# by hand\n\n<!-- generated: one -->\n\n```text\nold\n```\n\nby hand\n"
    assert fill(page, lambda name: f"```text\n{name}\n```\n") == page.replace("old", "one")


def test_the_page_of_commands_has_every_command_and_every_exit_code() -> None:
    commands = page("reference/cli.md")
    assert all(f"\n## runner {name}\n" in commands for name in COMMANDS)
    assert all(f"| {code} | {meaning} |" in commands for code, meaning in EXIT_CODES.items())


def test_the_page_of_policy_facts_has_every_fact() -> None:
    facts = page("reference/policy-facts.md")
    assert re.findall(r"^\| `([a-z_.]+)` \| .* \| [EWC]+ \|", facts, re.MULTILINE) == list(FACTS)
