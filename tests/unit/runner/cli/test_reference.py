from pathlib import Path

from runner.cli.main import COMMANDS, EXIT_CODES
from runner.cli.reference import MARKER, main, renewed

PAGE = Path(__file__).parents[4] / "docs" / "cli.md"


def test_the_page_is_what_the_commands_say_of_themselves() -> None:
    page = PAGE.read_text()
    assert page == renewed(page), "make it anew: python -m runner.cli.reference docs/cli.md"


def test_the_page_has_every_command_and_every_exit_code() -> None:
    page = PAGE.read_text()
    assert all(f"\n## runner {name}\n" in page for name in COMMANDS)
    assert all(f"| {code} | {meaning} |" in page for code, meaning in EXIT_CODES.items())


def test_what_stands_above_the_marker_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    page.write_text(f"# by hand\n\n{MARKER}\nold")
    main(page)
    assert page.read_text().startswith(f"# by hand\n\n{MARKER}\n\n## Exit codes")
    assert "\nold" not in page.read_text()
