"""The patterns of ``gitignore(5)``, in each of their forms; git itself is asked in the integration tests."""

import pytest

from runner.adapters.host.code_snapshot.patterns import parse_patterns


def names(pattern: str, path: str) -> bool:
    """Return True if a pattern is about an entry; a path that ends in a slash is a directory."""
    found = list(parse_patterns(pattern))
    return any(each.is_about(path.removesuffix("/"), is_directory=path.endswith("/")) for each in found)


@pytest.mark.parametrize(
    ("pattern", "about", "not_about"),
    [
        ("a", "a x/a a/ x/a/", "ab x/ab a/b"),
        ("a/", "a/ x/a/", "a x/a"),
        ("/a", "a a/", "x/a"),
        ("x/a", "x/a x/a/", "a y/x/a"),
        ("*.py", "m.py x/m.py", "m.pyc"),
        ("a?c", "abc", "ac a/c"),
        ("x/*", "x/a x/a/", "x/a/b x"),
        ("a/**/b", "a/b a/x/b a/x/y/b", "x/a/b"),
        ("**/b", "b x/b x/y/b", "xb"),
        ("a/**", "a/b a/b/c", "a a/"),
        ("a**b", "ab axb", "a/b"),
        ("**/", "a/ x/a/", "a"),
        ("[a-c]1", "a1 c1", "d1 -1"),
        ("[!a]1", "b1", "a1"),
        ("[^a]1", "b1", "a1"),
        ("[]a]", "] a", "b"),
        ("[a\\]]", "] a", "\\"),
        ("[[:digit:]]x", "1x", "ax :x"),
        ("[a-]", "a -", "b"),
        ("[*?]", "* ?", "a"),
        ("\\#x", "#x", "x"),
        ("\\!x", "!x", "x"),
        ("a\\*", "a*", "ab"),
        ("x\t", "x\t", "x"),
        ("x\r", "x", "x\r"),
        ("[a", "", "[a a"),
        ("[[:none:]]", "", "a"),
        ("a\\", "", "a a\\"),
        ("a//b", "", "a/b"),
        ("./a", "", "a"),
        ("!", "", "!"),
        ("#a", "", "#a a"),
        ("", "", "a"),
        ("/", "", "a a/"),
    ],
)
def test_a_pattern_is_about_what_git_says(pattern: str, about: str, not_about: str) -> None:
    assert [path for path in about.split(" ") if path and not names(pattern, path)] == []
    assert [path for path in not_about.split(" ") if names(pattern, path)] == []


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("x ", "x"),
        ("x  ", "x"),
        ("x\\ ", "x "),
        ("x\\  ", "x "),
        ("x\\\\ ", "x\\"),
        (" x", " x"),
        ("a b", "a b"),
    ],
)
def test_a_blank_at_the_end_counts_behind_a_backslash_alone(pattern: str, name: str) -> None:
    assert names(pattern, name)
    assert not names(pattern, f"{name} ")


def test_many_asterisks_cost_no_more_than_few() -> None:
    """As in a file of patterns that came with somebody's repository."""
    assert not names("*a" * 40 + "b", "a" * 250)
    assert names("*a*b*c/d*", "xaybzc/d")
    assert names("*ab*b", "aabab")


def test_a_pattern_with_an_exclamation_mark_has_back() -> None:
    assert [each.ignores for each in parse_patterns("*.bin\n!a.bin\n\\!x\n")] == [True, False, True]
