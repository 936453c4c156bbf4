"""Parses policy files, and reports all problems of a file at once.

With ``extends``, a file inherits from another policy: its own rules are tried first and replace inherited
rules of the same name, and its ceilings can only be tighter.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

from jobs.contract import PluginRegistry, load_plugins
from runner.base import yaml
from runner.base.textfile import FileError, Problem, list_yaml_stems, quoted, read_source
from runner.base.units import format_duration
from runner.core.policy.conditions import comparisons
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.history import KEPT_STARTS
from runner.core.policy.model import Backoff, Ceilings, Economics, Policy, RestartRate, Rule, tightest
from runner.files.cursor import Cursor, read_field, read_whole
from runner.files.policy.lint import find_unreachable_rules
from runner.files.policy.rules import LONGEST_NAME, NAME, ParsedRules, parse_name, parse_rules
from runner.files.validation import did_you_mean, suggest_choice

SHIPPED: Final = Path(__file__).parent / "shipped"
"""The directory of the shipped policies."""

VERSION: Final = 1
DEFAULT: Final = "default"

SECTIONS: Final = {
    DecisionPoint.EXIT: "on_exit",
    DecisionPoint.WATCH: "on_watch",
    DecisionPoint.CHANGE: "on_change",
}
FIELDS: Final = ("policy", "name", "extends", "ceilings", "backoff", "economics", *SECTIONS.values())
MEANT: Final = {
    "version": "policy",
    "limits": "ceilings",
    "base": "extends",
    "rules": "on_exit",
    "retry": "backoff",
}

_FIELD: Final = re.compile(
    rb"^[\s{\"'\xef\xbb\xbf]*(" + "|".join(set(FIELDS) - {"name"}).encode() + rb")[\"']?\s*:", re.MULTILINE
)
"""A line that begins with a field of a policy."""

MAX_RULES: Final = 300
"""Rules of a policy, those that it inherits included; the shipped policies have a few dozen."""

MAX_CHAIN: Final = 8
"""Files of a policy: one, and those that it extends."""

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Finds policies: by name in a directory, and by path if that is allowed.

    A daemon that parses for other users sets ``paths=False``: it would read a path with its own rights.
    """

    directory: Path = SHIPPED
    paths: bool = True
    reader: Callable[[Path], bytes] | None = None  # reads a path with the rights of a user

    def names(self) -> tuple[str, ...]:
        """Return the names of the policies in the directory, without files of cases."""
        own = filter(NAME.fullmatch, list_yaml_stems(self.directory))
        return tuple(sorted((*own, *self._others())))

    def path(self, name: str) -> Path:
        """Return the file of a policy by name; a plug-in's where it has one of this name."""
        return self._others().get(name, self.directory / f"{name}.yaml")

    def _others(self) -> Mapping[str, Path]:
        return plugin_policies().found if self.directory == SHIPPED else {}

    def has(self, name: str) -> bool:
        """Return True if there is a policy of this name."""
        return NAME.fullmatch(name) is not None and os.path.exists(self.path(name))  # noqa: PTH110  at each submission

    def text(self, path: Path) -> bytes:
        """Return the text of a policy; may raise FileError."""
        if self.reader is None or path.parent == self.directory or path in self._others().values():
            return read_policy_source(path)
        return self.reader(path)

    def find(self, name: str, beside: Path) -> Path | None:
        """Return the file of the policy that another file names."""
        if name in self.names():
            return self.path(name)
        looks_like_path = "/" in name or name.endswith(".yaml")
        return (beside.parent / name) if self.paths and looks_like_path else None


@cache
def plugin_policies() -> PluginRegistry[Path]:
    """Return the policies of plug-ins: the path of each file, in the package of its plug-in."""
    return load_plugins("policies", {}, _checked_policy)


def _checked_policy(name: str, value: object) -> Path:
    """Return the file of a plug-in's policy; its content is checked when a job names it."""
    if not isinstance(value, Path):
        raise TypeError("must be the pathlib.Path of a YAML file")
    if not NAME.fullmatch(name):
        raise ValueError("a name has lower-case letters, digits and -")
    if (SHIPPED / f"{name}.yaml").exists():
        raise ValueError("the name is taken; rename it")
    if not value.is_file():
        raise ValueError(f"there is no file {value}")
    return value


def load_named_policy(name: str, shelf: PolicySource | None = None) -> Policy:
    """Return a shipped policy by name; may raise FileError."""
    shelf = shelf or PolicySource()
    if name not in shelf.names():
        raise unknown_policy_error(name, shelf)
    return read_policy(shelf.path(name), shelf)


def unknown_policy_error(name: str, shelf: PolicySource) -> FileError:
    """Return the error for a name that no policy has."""
    hint = suggest_choice(name, shelf.names())
    return FileError(Path(name), [Problem(None, "", f"there is no policy of this name{hint}")])


def read_policy(path: Path, shelf: PolicySource | None = None) -> Policy:
    """Return the policy in a file; may raise FileError."""
    shelf = shelf or PolicySource()
    return parse_policy(shelf.text(path), path, shelf)


def parse_policy(
    raw: bytes, path: Path, shelf: PolicySource | None = None, above: tuple[Path, ...] = ()
) -> Policy:
    """Return the policy in a YAML text; ``path`` is used in messages and to find the extended policy.

    ``above`` are the files that extend this one.

    Raises:
        FileError: with every problem at once.
    """
    _check_is_policy(raw, path)
    return read_whole(raw, path, lambda top: _policy(top, path, shelf or PolicySource(), above))


def read_policy_source(path: Path) -> bytes:
    """Return the text of a policy file; may raise FileError."""
    if not path.exists() and not path.is_symlink():
        raise FileError(
            path, [Problem(None, "", 'no such file; "runner policy show" prints one to begin with')]
        )
    return read_source(path, "policy")


def _policy(cursor: Cursor, path: Path, shelf: PolicySource, above: tuple[Path, ...]) -> Policy:
    """Return the policy at a cursor, and report its problems."""
    here = cursor.fields(FIELDS, MEANT)
    _check_version(cursor, here)
    parent = _parent(here["extends"], path, shelf, above) if "extends" in here else None
    base = parent or Policy("")
    _drop_long_sections(here)
    written = {
        moment: parse_rules(here[name], moment) if name in here else [] for moment, name in SECTIONS.items()
    }
    merged = {
        moment: _merge_rules([each.rule for each in written[moment]], base.rules(moment))
        for moment in DecisionPoint
    }
    policy = Policy(
        read_field(here, "name", parse_name, _default_name(path)),
        read_field(here, "ceilings", lambda each: _ceilings(each, parent), base.ceilings),
        read_field(here, "backoff", lambda each: _backoff(each, base.backoff), base.backoff),
        read_field(here, "economics", lambda each: _economics(each, base.economics), base.economics),
        merged[DecisionPoint.EXIT],
        merged[DecisionPoint.WATCH],
        merged[DecisionPoint.CHANGE],
    )
    _check_stopping_rules(written[DecisionPoint.EXIT], policy)
    if not policy.on_exit and not cursor.problems:
        fact = "is required; without a rule every job is held"
        cursor.problems.append(Problem(yaml.START, "on_exit", fact))
    count = sum(len(rules) for rules in merged.values())
    if count > MAX_RULES and not cursor.problems:
        fact = f"has {count} rules with those that it inherits, and the limit is {MAX_RULES}; remove some"
        cursor.problems.append(Problem(yaml.START, "", fact))
    return policy


def _default_name(path: Path) -> str:
    """Return the name of a policy that gives none: that of its file, in the letters of a name."""
    name = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")
    name = name if name[:1].isalpha() else f"policy-{name}"
    return name[:LONGEST_NAME].rstrip("-")


def _drop_long_sections(here: dict[str, Cursor]) -> None:
    """Report the sections with too many rules, and leave them out: they are not parsed."""
    for name in SECTIONS.values():
        items = getattr(here[name].node, "items", ()) if name in here else ()
        if len(items) > MAX_RULES:
            here.pop(name).report_at_key(f"has {len(items)} rules, and the limit is {MAX_RULES}; remove some")


def _check_is_policy(raw: bytes, path: Path) -> None:
    """Check that a text is meant as a policy, so that messages never quote another kind of file.

    Raises:
        FileError: no line begins with a field of a policy.
    """
    if raw.strip() and raw[:1] not in {b"\xff", b"\xfe"} and _FIELD.search(raw) is None:
        fact = "is not a policy; a policy file begins with the line policy: 1"
        raise FileError(path, [Problem(yaml.START, "", fact)])


def _check_version(cursor: Cursor, here: Mapping[str, Cursor]) -> None:
    if "policy" not in here:
        cursor.problems.append(Problem(yaml.START, "policy", f"is required; write policy: {VERSION}"))
    elif here["policy"].value() != VERSION or here["policy"].value() is True:
        here["policy"].report(f"must be {VERSION}, the version of the language, not {here['policy'].written}")


def _merge_rules(own: list[Rule], inherited: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the file's own rules, then the inherited rules that are not replaced and still reachable."""
    names = {rule.name for rule in own}
    both = (*own, *(rule for rule in inherited if rule.name not in names))
    never = {rule.name for rule, _ in find_unreachable_rules(both)} - names
    return tuple(rule for rule in both if rule.name not in never)


# --- Inheritance --------------------------------------------------------------------------------------


def _parent(cursor: Cursor, path: Path, shelf: PolicySource, above: tuple[Path, ...]) -> Policy | None:
    name = cursor.text(500)
    if name is None:
        return None
    found = shelf.find(name, path)
    if found is None:
        cursor.report(f"there is no policy {quoted(name)}{suggest_choice(name, shelf.names())}")
        return None
    chain = (*above, _without_dots(path))
    if _without_dots(found) in chain:
        cursor.report(f"extends itself: {' -> '.join(each.stem for each in (*chain, found))}")
        return None
    if len(chain) >= MAX_CHAIN:
        cursor.report(f"makes a chain of more than {MAX_CHAIN} policies that extend each other")
        return None
    try:
        return parse_policy(shelf.text(found), found, shelf, chain)
    except FileError as error:
        first, more = error.lines[0], len(error.problems) - 1
        cursor.report(f"is not right: {first}{f' (and {more} more)' if more else ''}")
        return None


def _without_dots(path: Path) -> Path:
    """Return an absolute path without ``..``.

    Links are not followed: that would look at a user's path with the daemon's rights.  A cycle through links
    ends at the limit of the chain.
    """
    return Path(os.path.abspath(path))  # noqa: PTH100  resolve() follows links


# --- Settings -----------------------------------------------------------------------------------------


def _ceilings(cursor: Cursor, parent: Policy | None) -> Ceilings:
    base = parent.ceilings if parent else Ceilings()
    here = cursor.fields([each.name for each in fields(Ceilings)], {"max_attempts": "attempts"})
    own = replace(
        base,
        attempts=read_field(here, "attempts", lambda each: each.whole(1, 1000), base.attempts),
        wall=_wall(here["wall"], base.wall) if "wall" in here else base.wall,
        storm=read_field(here, "storm", lambda each: _storm(each, base.storm), base.storm),
        no_progress=read_field(here, "no_progress", lambda each: each.whole(1, 1000), base.no_progress),
    )
    if parent:
        _check_tightening(own, parent, here)
    if "no_progress" in here and own.no_progress > own.attempts:
        here["no_progress"].report(f"is never reached, because ceilings.attempts is {own.attempts}")
    return tightest(base, own) if parent else own


def _wall(cursor: Cursor, base: timedelta | None) -> timedelta | None:
    is_null = isinstance(cursor.node, yaml.ScalarNode) and cursor.node.value is None
    return None if is_null else cursor.duration(MINUTE, 3660 * DAY) or base


def _storm(cursor: Cursor, base: RestartRate) -> RestartRate:
    here = cursor.fields([each.name for each in fields(RestartRate)])
    return RestartRate(
        read_field(here, "attempts", lambda each: each.whole(1, KEPT_STARTS), base.attempts),
        read_field(here, "within", lambda each: each.duration(SECOND, 7 * DAY), base.within),
    )


def _check_tightening(own: Ceilings, parent: Policy, here: Mapping[str, Cursor]) -> None:
    """Report ceilings that are looser than the inherited ones."""
    base = parent.ceilings
    longest = timedelta.max
    looser = {
        "attempts": own.attempts > base.attempts,
        "wall": (own.wall or longest) > (base.wall or longest),
        "storm": own.storm.attempts > base.storm.attempts or own.storm.within < base.storm.within,
        "no_progress": own.no_progress > base.no_progress,
    }
    for name in (each for each in looser if looser[each] and each in here):
        fact = (
            f"is looser than in {quoted(parent.name)} ({_said(base, name)}); a ceiling can only be tightened"
        )
        here[name].report(fact)


def _said(ceilings: Ceilings, name: str) -> str:
    if name == "storm":
        return f"{ceilings.storm.attempts} within {format_duration(ceilings.storm.within)}"
    if name == "wall":
        return format_duration(ceilings.wall) if ceilings.wall else "none"
    return str(getattr(ceilings, name))


def _backoff(cursor: Cursor, base: Backoff) -> Backoff:
    here = cursor.fields([each.name for each in fields(Backoff)])
    wait: Callable[[Cursor], timedelta | None] = lambda each: each.duration(0 * SECOND, DAY)  # noqa: E731 - used twice
    own = Backoff(
        read_field(here, "first", wait, base.first),
        read_field(here, "factor", lambda each: each.number(1, 100), base.factor),
        read_field(here, "max", wait, base.max),
        read_field(here, "jitter", lambda each: each.number(0, 1), base.jitter),
    )
    if own.first > own.max:
        (here.get("first") or here["max"]).report_at_key(
            "the first wait is longer than max; lower first or raise max"
        )
    if own.factor == 1 and "factor" in here and "max" in here:
        here["max"].report_at_key(
            "is never reached, because with factor 1 every wait equals first; remove it"
        )
    return own


def _economics(cursor: Cursor, base: Economics) -> Economics:
    here = cursor.fields([each.name for each in fields(Economics)])
    return Economics(
        read_field(here, "hurdle", lambda each: each.number(1, 100), base.hurdle),
        read_field(here, "saving", lambda each: each.duration(0 * SECOND, 365 * DAY), base.saving),
        read_field(here, "max_swaps", lambda each: each.whole(0, 100), base.max_swaps),
        read_field(here, "rate_window", lambda each: each.duration(10 * SECOND, DAY), base.rate_window),
    )


# --- Checks of the whole policy -----------------------------------------------------------------------


def _check_stopping_rules(written: list[ParsedRules], policy: Policy) -> None:
    """Report conditions about stops by a rule of on_watch that does not exist."""
    there = {f"watch/{rule.name}" for rule in policy.on_watch}
    for each in written:
        for test in comparisons(each.rule.when):
            operands = test.operand if isinstance(test.operand, tuple) else (test.operand,)
            for word in operands if test.fact == "killed_by" else ():
                if str(word).startswith("watch/") and word not in there:
                    hint = did_you_mean(str(word), there)
                    each.fields["when"].report_at_key(
                        f"there is no rule {quoted(str(word))} in on_watch{hint}"
                    )
