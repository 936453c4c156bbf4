from pathlib import Path

import pytest

from scripts.docs import site

PAGE = "docs/howto/drain.md"


def relinked(text: str) -> tuple[str, list[str]]:
    copied: list[str] = []
    return site.relink(text, PAGE, copied.append), copied


def test_a_link_between_pages_stays_as_it_is() -> None:
    text = "[devices](../explanation/devices.md#states), [here](#drain), [there](https://example.org/a.md)"
    assert relinked(text) == (text, [])


def test_a_link_to_a_page_in_the_root_leads_to_its_place_on_the_site() -> None:
    assert relinked("[contributing](../../CONTRIBUTING.md#style)") == (
        "[contributing](../contributing.md#style)",
        [],
    )
    assert (
        site.relink("[jobs](docs/reference/jobfile.md)", "CONTRIBUTING.md", print)
        == "[jobs](reference/jobfile.md)"
    )


def test_a_file_that_a_page_links_to_is_copied_to_the_site() -> None:
    text, copied = relinked("[demo](../../examples/demo.yaml)")
    assert (text, copied) == ("[demo](../files/examples/demo.yaml)", ["examples/demo.yaml"])


def test_what_looks_like_a_link_in_code_is_left_alone() -> None:
    text = "```console\n[a](nowhere.md)\n```\n"
    assert relinked(text) == (text, [])


def test_a_link_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(site.SiteError, match=r"docs/howto/drain.md: the link to nowhere.md leads nowhere"):
        relinked("[a](nowhere.md)")


def test_a_diagram_becomes_a_picture_and_other_code_stays() -> None:
    pictures: dict[str, str] = {}
    code = "```yaml\na: 1\n```\n"
    text = site.draw(f"{code}```mermaid\nflowchart LR\n```\n", PAGE, pictures.__setitem__)
    [(name, diagram)] = pictures.items()
    assert text == f"{code}![diagram](../{name.removeprefix('docs/')})\n"
    assert diagram == "flowchart LR\n"


def test_the_navigation_leads_to_every_page_once() -> None:
    site.check_navigation()


def test_a_page_that_loads_a_script_from_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script src="https://cdn.example.org/x.js"></script>', encoding="utf-8")
    with pytest.raises(site.SiteError, match=r"a.html: loads something from elsewhere"):
        site.check_built(tmp_path)
