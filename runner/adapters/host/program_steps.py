"""The steps in the names of a program's checkpoints, as far as they show themselves as such.

Names decide nothing: the newest checkpoint is the one that was written last.  A number in its name is shown
to people as its step, if it has grown since the checkpoint before.  Of a name that stands alone, the word
before the number must be none that measures something.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, starmap
from operator import gt
from typing import Final, NamedTuple

_SUFFIX: Final = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,11}")
_VERSION: Final = re.compile(r"-v[0-9]+$")  # what Lightning adds to a name that is there already
_NO_STEP: Final = re.compile(
    r"(?<![0-9])20[0-9]{2}([-_.]?)[01][0-9]\1[0-3][0-9]"
    r"(?:[ T_.-]?[0-9]{2}([-_:.h]?)[0-9]{2}(?:\2[0-9]{2}(?:[.,_-][0-9]{3,6})?)?)?(?![0-9])"
    r"|(?<![0-9])[0-3]?[0-9]([-_.])[0-3]?[0-9]\3(?:20)[0-9]{2}(?![0-9])"
    r"|(?<![0-9])[0-9]{6}[_-][0-2][0-9][0-5][0-9][0-5][0-9](?![0-9])"
    r"|[A-Z][a-z]{2}[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}"
    r"|(?<![0-9])1[6-9][0-9]{8}(?:[0-9]{3}){0,3}(?:\.[0-9]+)?(?![0-9])"
    r"|[0-9]{5}-of-[0-9]{5}|(?<![0-9A-Za-z])0x[0-9a-f]+"
)
"""A date with a time of day, the time since 1970, the number of a shard, and one to the base 16."""

_NUMBER: Final = re.compile(
    r"([A-Za-z]*)([ =_.-]*)([0-9]++(?:[.,][0-9]++)*+)"
    r"(?!(?!(?i:epochs?|steps?|it|iters?)(?![A-Za-z]))[A-Za-z])"
)
_STEPS: Final = re.compile(r"(?i)steps?|it|iter|iters|iterations?|updates?")
_COUNTED: Final = re.compile(
    r"(?i).*(?:steps?|it|iters?|iterations?|updates?|ep|epochs?|batch(?:es)?|ba|round|gen|ckpt|checkpoint|ck|cp|model"
    r"|state|snapshot|save|weights)|[a-z]?"
)
"""Words that a number may follow at once, where there is no name before it that shows that it grows."""

_MEASURES: Final = re.compile(
    r"(?i).*(?:acc|accuracy|loss|err|error|f1|auc|map|bleu|rouge|wer|cer|ppl|perplexity|score|metric|reward"
    r"|return|psnr|fid|iou|dice|mse|mae|rmse)|val|best|top|lr|seed|fold|rank|of|v|version|fp|bf|int|gpu|run|exp"
    r"|worker|proc|process|node|host|shard|part|split|trial|phase|stage|task|job"
)
"""Words before a number that is no counter: what was measured, a part, and what stays the same."""

MAX_DIGITS: Final = 15


class _Slot(NamedTuple):
    label: str
    value: int
    is_apart: bool  # from its label


def show_steps(names: Sequence[str], written_over: frozenset[int] = frozenset()) -> list[int | None]:
    """Return the step of each name, the newest first; None where the name tells none.

    ``written_over`` are the places of those that have been written over under one name: such a number stays.
    """
    return list(_falling(count_steps(names, written_over)))


def count_steps(names: Sequence[str], written_over: frozenset[int] = frozenset()) -> list[int | None]:
    """Return the same, with the steps of a numbering that has ended before another one began."""
    rows = [_slots(name) for name in names]
    alike: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        alike.setdefault(_template(name), []).append(place)
    found: list[int | None] = [None] * len(names)
    numberings = []
    for places in alike.values():
        slot = _counter([rows[place] for place in places], is_constant=places[0] in written_over)
        if slot is not None:
            numberings.append({place: rows[place][slot].value for place in places})
    for counted in sorted(numberings, key=lambda each: (len(each), max(each.values())), reverse=True):
        if not any(_is_beside(counted, found, others) for others in alike.values()):
            for place, value in counted.items():
                found[place] = value
    return found


def _is_beside(counted: Mapping[int, int], found: Sequence[int | None], others: Sequence[int]) -> bool:
    """Return True if numbers count something else than those of other names: epochs beside steps.

    One numbering may follow another if both go on; it may not come between, unless all fall together.
    """
    known = {place: value for place in others if (value := found[place]) is not None}
    if not known:
        return False
    is_apart = max(counted) < min(known) or min(counted) > max(known)
    merged = [value for _, value in sorted({**known, **counted}.items())]
    follows = is_apart and len(counted) > 1
    return not follows and any(newer < older for newer, older in pairwise(merged))


def went_back(name: str, before: str) -> bool:
    """Return True if a name has a lower step than one like it that was there before."""
    (step,), (last,) = count_steps([name]), count_steps([before])
    return _template(name) == _template(before) and step is not None and last is not None and step < last


def _falling(values: Sequence[int | None]) -> Iterator[int | None]:
    """Yield the numbers that fall from the newest to the oldest, without those of a numbering before."""
    lowest: int | None = None
    for value in values:
        if value is None or (lowest is not None and value > lowest):
            yield None
        else:
            lowest = value
            yield value


def _counter(rows: Sequence[Sequence[_Slot]], *, is_constant: bool) -> int | None:
    """Return the number of names that are alike that is a counter, None if none is."""
    newest = rows[0]
    bare = sum(not slot.label for slot in newest)  # several are a date
    places = [
        i
        for i, slot in enumerate(newest)
        if not _MEASURES.fullmatch(slot.label) and (slot.label or bare == 1)
    ]
    if len(rows) > 1:
        places = [i for i in places if i < len(rows[1]) and newest[i].value > rows[1][i].value]
        columns = {i: [row[i].value for row in rows if i < len(row)] for i in places}
        places = (
            [i for i in places if all(starmap(gt, pairwise(columns[i])))]
            or [
                i  # no epoch of steps
                for i in places
                if not any(a != b and a[i : i + 1] == b[i : i + 1] for a, b in pairwise(rows))
            ]
        )
    elif is_constant:
        return None
    else:
        places = [i for i in places if newest[i].is_apart or _COUNTED.fullmatch(newest[i].label)]
    steps = [i for i in places if _STEPS.fullmatch(newest[i].label)]
    labelled = [i for i in places if newest[i].label]
    return next(iter(reversed(steps or labelled or places)), None)


def _stem(name: str) -> str:
    return _VERSION.sub("", _SUFFIX.sub("", _NO_STEP.sub("", name)))


def _template(name: str) -> str:
    return _NUMBER.sub(r"\1\2#", _stem(name))


def _slots(name: str) -> list[_Slot]:
    """Return the whole numbers in a name; a decimal, or a part of a word, keeps its place, and is none."""
    return [
        _Slot(each[1], int(each[3]), is_apart=bool(each[2]))
        if each[3].isdecimal() and len(each[3]) <= MAX_DIGITS and not _is_in_a_word(each)
        else _Slot("loss", 0, is_apart=True)
        for each in _NUMBER.finditer(_stem(name))
    ]


def _is_in_a_word(number: re.Match[str]) -> bool:
    """Return True for digits of a digest or of an exponent: ``9f8c11``, ``2e3``; not of ``ep3it500``."""
    before, label = number.string[max(number.start() - 1, 0) : number.start()], number[1]
    return before.isdigit() and bool(label) and not (len(label) > 1 and _COUNTED.fullmatch(label))
