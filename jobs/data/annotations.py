"""Reads and validates annotations of a market, one JSON file each, and the candles beside them.

A directory holds ``annotation_*.json``, in any subdirectory, and may hold ``candles/SYMBOL/FRAME.csv`` (also
``.csv.gz`` and ``.parquet``; ``ETH/USDT`` is the directory ``ETH-USDT``) with the columns timestamp, open,
high, low, close and volume.  The frames are 1s, 1m, 1h and 1d.  An annotation names symbol, timestamp and
action; its ``market_state`` holds candles (``ohlcv_1m``: rows, or one list for each column), ``order_book``,
``technical`` and ``position``, and its ``expected_outcome`` what came after it.  A frame that an annotation
lacks is cut out of the candles beside it, closed ones only; where there are none either, it is missing,
which is no error as long as one frame is there.  Candles of an annotation that begin after it are left out.

With labels of candles, ``training_labels`` (beside ``market_state`` or in it) holds ``labels_1m``, a label
for each candle of ``ohlcv_1m``: 0 and 2 (no trade, and in a trade) mean hold, 1 (the entry) the annotation's
action, 3 (the exit) the opposite one; or the name of an action.  Each makes a record of its own, of the
candles that had closed with it.

Times are ISO 8601; without a zone they are UTC.  An error names the file and the place in it.
"""
# ruff: noqa: N803, N806, N815 - arrays carry their shape: N candles, F open-high-low-close-volume

import csv
import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jobs.contract.plans.base import Clean
from jobs.data.cleaning import Cleaner
from jobs.data.tables import OHLCV, SUFFIXES
from jobs.training.failures import InvalidSpec

FRAME_SECONDS: Final[Mapping[str, int]] = MappingProxyType({"1s": 1, "1m": 60, "1h": 3600, "1d": 86400})

ACTIONS: Final = ("hold", "buy", "sell")

DIRECTIONS: Final = ("down", "flat", "up")

_DIRECTION_WORDS: Final = MappingProxyType(
    {
        "short": "down",
        "down": "down",
        "long": "up",
        "up": "up",
        "flat": "flat",
        "neutral": "flat",
        "none": "flat",
    }
)

FLAT: Final = 0.1
"""Percent; a smaller change of the price is no trend."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amount of each input in an annotation; None: the input is not used."""

    frames: tuple[str, ...]
    candles: int
    order_book: int | None
    technical: int | None
    position: int | None
    pivots: int
    labels: bool = False
    """A record for each label of a candle."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation: when it was made, when its outcome was known, and all numbers as JSON text."""

    path: Path
    at: float  # seconds since 1970
    known: float
    record: str
    later: int = 0  # candles that it holds of the time after it; they are left out


@dataclass(frozen=True, slots=True)
class Candles:
    """Candles of one frame: the second at which each begins, and its numbers, float64."""

    begin_N: NDArray[np.float64]
    values_NF: NDArray[np.float64]


def read_annotations(path: Path, sizes: Sizes, clean: Clean | None = None) -> tuple[Annotation, ...]:
    """Return the annotations of a directory, the oldest first.

    Raises:
        InvalidSpec: there are none, or one is invalid.
    """
    if not path.is_dir():
        raise InvalidSpec(f"data: {path}: not a directory; give one with annotation_*.json files")
    files = sorted(path.rglob("annotation_*.json"))
    if not files:
        raise InvalidSpec(f"data: no annotation_*.json below {path}; put one file for each annotation there")
    tables, cleaner = _Tables(path / "candles"), Cleaner(clean)
    found = [one for file in files for one in _annotation(file, sizes, tables, cleaner)]
    cleaner.tell()
    return tuple(sorted(found, key=lambda one: (one.at, one.path)))


class _Tables:
    """The candles beside annotations, each table read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read = lru_cache(maxsize=None)(read_candles)

    def of(self, symbol: str, frame: str) -> Candles | None:
        folder = self._directory / symbol.replace("/", "-")
        found = [
            folder / f"{frame}{suffix}" for suffix in SUFFIXES if (folder / f"{frame}{suffix}").is_file()
        ]
        if len(found) > 1:
            raise InvalidSpec(f"data: {folder} holds {found[0].name} and {found[1].name}; keep one of them")
        return self._read(found[0]) if found else None


@dataclass(frozen=True, slots=True)
class _Place:
    """A value inside an annotation or a row of a table, with its place in the file for messages."""

    file: str  # with the row of a table
    name: str
    value: Any

    def wrong(self, fact: str) -> InvalidSpec:
        name = f"{self.name} " if self.name else ""
        return InvalidSpec(f"data: {self.file}: {name}{fact}")

    def get(self, key: str) -> "_Place | None":
        """Return a member of an object, None if it is absent or null."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"is {_shown(self.value)}; it must be an object")
        found = self.value.get(key)
        return None if found is None else _Place(self.file, f"{self.name}.{key}".removeprefix("."), found)

    def need(self, key: str) -> "_Place":
        found = self.get(key)
        if found is None:
            raise InvalidSpec(
                f"data: {self.file}: {self.name}.{key}".replace(": .", ": ") + " is missing; add it"
            )
        return found

    def items(self) -> "list[_Place]":
        if not isinstance(self.value, list):
            raise self.wrong(f"is {_shown(self.value)}; it must be a list")
        return [_Place(self.file, f"{self.name}[{n}]", each) for n, each in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong(f"is {_shown(self.value)}; it must be text")
        return self.value.strip()

    def number(self, *, least: float = -math.inf, above: float = -math.inf) -> float:
        given = self.value
        if isinstance(given, bool):
            given = int(given)
        if not isinstance(given, int | float) or not math.isfinite(given):
            raise self.wrong(f"is {_shown(self.value)}; it must be a finite number")
        if given < least or given <= above:
            raise self.wrong(
                f"is {given:g}; it must be "
                + (f"at least {least:g}" if given < least else f"above {above:g}")
            )
        return float(given)

    def time(self) -> float:
        """Return the seconds since 1970 of an ISO time."""
        seconds = _seconds(self.value) if isinstance(self.value, str) else None
        if seconds is None:
            raise self.wrong(f"is {_shown(self.value)}; write it as 2024-12-31T23:59:00Z")
        return seconds


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _seconds(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return _utc(found)


def _utc(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _annotation(file: Path, sizes: Sizes, tables: _Tables, cleaner: Cleaner) -> Iterator[Annotation]:
    """Yield an annotation, and before it those that the labels of its candles make."""
    root = _Place(str(file), "", _loaded(file))
    symbol, at = root.need("symbol").text(), root.need("timestamp").time()
    action = root.need("action")
    if action.text().lower() not in ACTIONS:
        raise action.wrong(f"is {_shown(action.value)}; it must be one of HOLD, BUY and SELL")
    state = root.get("market_state") or _Place(str(file), "market_state", {})
    whole = {frame: _rows(state, frame) for frame in sizes.frames}
    found = {frame: _known(rows, frame, at, sizes, tables.of(symbol, frame)) for frame, rows in whole.items()}
    there = {frame: rows for frame, rows in found.items() if rows}
    if not there:
        wanted = ", ".join(f"ohlcv_{frame}" for frame in sizes.frames)
        raise InvalidSpec(
            f"data: {file}: market_state has none of {wanted}, nor are there candles beside; add one"
        )
    outcome = root.get("expected_outcome") or _Place(str(file), "expected_outcome", {})
    holding = outcome.get("holding_period_seconds")
    known = at + (0.0 if holding is None else holding.number(above=0))
    entry = _price(outcome, "entry_price") or next(iter(there.values()))[-1][3]
    later = next((table for frame in there if (table := tables.of(symbol, frame)) is not None), None)
    record = {
        "action": action.text().lower(),
        "frames": there,
        "order_book": _order_book(state, sizes, cleaner),
        "technical": _vector(state, "technical", sizes.technical, cleaner),
        "position": _vector(state, "position", sizes.position, cleaner),
        **_outcome(outcome, entry),
        "pivots": _pivots(outcome, entry, (at, known), later, sizes.pivots),
    }
    unseen = sum(begin > at for rows in whole.values() for begin, _, _ in rows or ())
    own = Annotation(file, at, known, json.dumps(record), 0 if sizes.labels else unseen)
    if sizes.labels:
        yield from _labelled(root, state, whole, sizes, own, lambda frame: tables.of(symbol, frame))
    else:
        yield own


def _loaded(file: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    try:
        found = json.loads(file.read_bytes())
    except json.JSONDecodeError as error:
        raise InvalidSpec(
            f"data: {file}:{error.lineno}:{error.colno}: {error.msg}; correct the JSON"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        fact = getattr(error, "strerror", None) or str(error)
        raise InvalidSpec(f"data: {file}: {fact}; give a readable JSON file in UTF-8") from error
    if not isinstance(found, dict):
        raise InvalidSpec(f"data: {file}: is {_shown(found)}; an annotation is an object")
    return found


# --- Candles


def _rows(state: _Place, frame: str) -> "list[_Row] | None":
    """Return all candles of a frame in an annotation, None if it has none of them."""
    given = state.get(f"ohlcv_{frame}")
    if given is None:
        return None
    rows = _columns(given) if isinstance(given.value, dict) else [_row(each) for each in given.items()]
    for (before, _, _), (begin, _, place) in pairwise(rows):
        if begin <= before:
            raise place.wrong("does not follow the candle before it; sort them by time, each once")
    return rows


def _known(
    rows: "list[_Row] | None", frame: str, at: float, sizes: Sizes, beside: Candles | None
) -> list[list[float]]:
    """Return the last candles of a frame up to a time: the annotation's own, or closed ones beside it.

    Later ones are what nobody knew then: a window of some minutes around a signal has them.
    """
    if rows is None:
        return _cut(beside, frame, at, sizes.candles) if beside else []
    return [values for begin, values, _ in rows if begin <= at][-sizes.candles :]


def _labelled(  # noqa: PLR0913, PLR0917  (an annotation in its parts)
    root: _Place,
    state: _Place,
    whole: "Mapping[str, list[_Row] | None]",
    sizes: Sizes,
    own: Annotation,
    beside: Callable[[str], Candles | None],
) -> Iterator[Annotation]:
    """Yield a record for each labelled candle, of closed candles alone; that of the signal is the annotation.

    All are known when the last of them is: they overlap, and must not lie on both sides of a split.  What
    came after a candle is not known, nor are the other inputs: they are those of the annotation's time.
    """
    given = root.get("training_labels") or state.get("training_labels")
    frame = next((each for each in sizes.frames if given and given.get(f"labels_{each}")), None)
    if given is None or frame is None:
        wanted = ", ".join(f"labels_{each}" for each in sizes.frames)
        raise InvalidSpec(
            f"data: {own.path}: training_labels has none of {wanted}; add it, or take labels out"
        )
    labels, rows = given.need(f"labels_{frame}").items(), whole[frame]
    if rows is None or len(rows) != len(labels):
        fact = f"has {len(labels)} labels for {len(rows or ())} candles of ohlcv_{frame}; give as many"
        raise given.need(f"labels_{frame}").wrong(fact)
    own_action = json.loads(own.record)["action"]
    known = max(own.known, rows[-1][0] + FRAME_SECONDS[frame] if rows else own.known)
    yield replace(own, known=known)
    for label, (begin, _, _) in zip(labels, rows, strict=True):
        action, closed = _action_of(label, own_action), begin + FRAME_SECONDS[frame]
        if begin <= own.at < closed:
            continue
        until = {each: closed - FRAME_SECONDS[each] for each in sizes.frames}
        frames = {
            each: _known(whole[each], each, until[each] if whole[each] else closed, sizes, beside(each))
            for each in sizes.frames
        }
        record = {
            "action": action,
            "frames": {each: one for each, one in frames.items() if one},
            **dict.fromkeys(_UNKNOWN),
            "pivots": [None] * sizes.pivots,
        }
        yield Annotation(own.path, closed, known, json.dumps(record))


_UNKNOWN: Final = ("order_book", "technical", "position", "price", "angle", "steepness", "direction")

_OPPOSITE: Final[Mapping[str, str]] = {"buy": "sell", "sell": "buy", "hold": "hold"}


def _action_of(label: _Place, own: str) -> str:
    """Return the action that a label of a candle means."""
    by_label: dict[object, str] = {
        0: "hold",
        1: own,
        2: "hold",
        3: _OPPOSITE[own],
        **{action: action for action in ACTIONS},
    }
    given = label.value.lower() if isinstance(label.value, str) else label.value
    if isinstance(given, bool) or not isinstance(given, int | str) or given not in by_label:
        raise label.wrong(f"is {_shown(label.value)}; it must be 0, 1, 2 or 3, or one of HOLD, BUY and SELL")
    return by_label[given]


_Row = tuple[float, list[float], _Place]


def _row(place: _Place) -> _Row:
    fields = place.items()
    if len(fields) != 1 + len(OHLCV):
        raise place.wrong(f"has {len(fields)} numbers; a candle is [time, {', '.join(OHLCV)}]")
    return fields[0].time(), _candle(fields[1:], place), place


def _columns(place: _Place) -> list[_Row]:
    """Return the rows of an object with one list for each column."""
    columns = [place.need(name).items() for name in ("timestamps", *OHLCV)]
    for name, column in zip(OHLCV, columns[1:], strict=True):
        if len(column) != len(columns[0]):
            raise place.wrong(
                f"has {len(column)} of {name} for {len(columns[0])} timestamps; give as many of each"
            )
    return [
        (row[0].time(), _candle(row[1:], row[0]), row[0]) for row in map(list, zip(*columns, strict=True))
    ]


def _candle(fields: Sequence[_Place], place: _Place) -> list[float]:
    values = [field.number(above=0) for field in fields[:4]] + [fields[4].number(least=0)]
    if values[1] < values[2]:
        raise place.wrong(f"has a high of {values[1]:g} below its low of {values[2]:g}; correct it")
    return values


def _cut(table: Candles, frame: str, at: float, candles: int) -> list[list[float]]:
    """Return the last candles that were closed at a time."""
    stop = int(np.searchsorted(table.begin_N, at - FRAME_SECONDS[frame], side="right"))
    rows: list[list[float]] = table.values_NF[max(0, stop - candles) : stop].tolist()
    return rows


def read_candles(path: Path) -> Candles:
    """Return a table of candles.

    Raises:
        InvalidSpec: it cannot be read, or a candle is invalid.
    """
    try:
        rows = _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
        found = [(number, _checked(path, number, row)) for number, row in rows]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise InvalidSpec(f"data: {path}: {' '.join(str(error).split())}; give a readable table") from error
    if not found:
        raise InvalidSpec(f"data: {path}: no candles; a table has a row for each")
    for (_, before), (number, after) in pairwise(found):
        if after[0] <= before[0]:
            raise InvalidSpec(f"data: {path}:{number}: does not follow the row before it; sort by timestamp")
    table = np.array([candle for _, candle in found], dtype=np.float64)
    return Candles(table[:, 0], table[:, 1:])


def _checked(path: Path, number: int, row: Mapping[str, Any]) -> list[float]:
    where = f"{path}:{number}"
    time = row["timestamp"]
    seconds = _utc(time) if isinstance(time, datetime) else _seconds(str(time))
    if seconds is None:
        raise InvalidSpec(f"data: {path}:{number}: timestamp is {time!r}; write it as 2024-12-31T23:59:00Z")
    fields = [_Place(where, name, _as_number(row[name])) for name in OHLCV]
    return [seconds, *_candle(fields, _Place(where, "", row))]


def _as_number(given: object) -> object:
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each row with the number of its line."""
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, restkey="")
        _need_columns(path, rows.fieldnames or ())
        for row in rows:
            if None in row.values() or "" in row:
                raise InvalidSpec(
                    f"data: {path}:{rows.line_num}: has not as many fields as the header has; correct the row"
                )
            yield rows.line_num, {name.strip().lower(): value for name, value in row.items()}


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield each row with its number, from 1 on."""
    import pyarrow as pa  # noqa: PLC0415 - a large import that only Parquet files need
    from pyarrow import parquet  # noqa: PLC0415

    try:
        found = parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise InvalidSpec(f"data: {path}: {' '.join(str(error).split())}; write the file again") from error
    _need_columns(path, found.column_names)
    for number, row in enumerate(found.to_pylist(), 1):
        yield number, {name.lower(): value for name, value in row.items()}


def _need_columns(path: Path, names: Sequence[str]) -> None:
    there = {name.strip().lower() for name in names}
    if missing := [name for name in ("timestamp", *OHLCV) if name not in there]:
        found = ", ".join(names) or "none"
        raise InvalidSpec(f"data: {path}:1: no column {', '.join(missing)} among {found}; add it")


# --- Other inputs


def _vector(state: _Place, name: str, count: int | None, cleaner: Cleaner) -> list[float] | None:
    """Return so many numbers: a list, or an object whose members are taken in the order of their names."""
    given = None if count is None else state.get(name)
    if given is None:
        return None
    if isinstance(given.value, dict):
        places = [_Place(given.file, f"{given.name}.{key}", given.value[key]) for key in sorted(given.value)]
    else:
        places = given.items()
    if len(places) != count:
        raise given.wrong(f"has {len(places)} numbers; annotations.{name} says {count}; correct one")
    return _numbers(places, cleaner)


def _numbers(places: Sequence[_Place], cleaner: Cleaner) -> list[float] | None:
    """Return the numbers of a vector, None if one of them is missing."""
    values = list[float]()
    for place in places:
        value = math.nan if place.value is None and cleaner.rule else place.value
        if isinstance(value, float):
            cleaned, missing = cleaner.clean(np.array([value]))
            if missing.any():
                return None
            value = float(cleaned[0])
        values.append(_Place(place.file, place.name, value).number())
    return values


def _order_book(state: _Place, sizes: Sizes, cleaner: Cleaner) -> list[list[float]] | None:
    """Return the last snapshots of the order book, as many as candles at most."""
    count = sizes.order_book
    given = None if count is None else state.get("order_book")
    if given is None:
        return None
    rows = []
    for snapshot in given.items()[-sizes.candles :]:
        numbers = (
            _levels(snapshot) if isinstance(snapshot.value, dict) else _numbers(snapshot.items(), cleaner)
        )
        if numbers is None:
            continue
        if len(numbers) != count:
            raise snapshot.wrong(
                f"has {len(numbers)} numbers; annotations.order_book says {count}; correct one"
            )
        rows.append(numbers)
    return rows or None


def _levels(snapshot: _Place) -> list[float]:
    """Return price and size of each bid, then of each ask: in percent from the middle, and as logarithms."""
    sides = [snapshot.need(side).items() for side in ("bids", "asks")]
    pairs = [[level.items() for level in side] for side in sides]
    for side, levels in zip(sides, pairs, strict=True):
        for place, level in zip(side, levels, strict=True):
            if len(level) != 2:
                raise place.wrong(f"has {len(level)} numbers; a level is [price, size]")
    best = [side[0][0].number(above=0) for side in pairs if side]
    if len(best) < 2:
        raise snapshot.wrong("has no bid or no ask; give both sides")
    middle = sum(best) / 2
    return [
        value
        for side in pairs
        for price, size in side
        for value in (100 * math.log(price.number(above=0) / middle), math.log1p(size.number(least=0)))
    ]


# --- What came after


def _price(outcome: _Place, name: str) -> float | None:
    found = outcome.get(name)
    return None if found is None else found.number(above=0)


def _outcome(outcome: _Place, entry: float) -> dict[str, Any]:
    """Return the price in percent, and the trend: angle, steepness, number of the direction, or None."""
    leaves, holding = _price(outcome, "exit_price"), outcome.get("holding_period_seconds")
    price = None if leaves is None else 100 * math.log(leaves / entry)
    hourly = None if price is None or holding is None else price * 3600 / holding.number(above=0)
    trend = outcome.get("trend") or _Place(outcome.file, "expected_outcome.trend", {})
    angle, steep = trend.get("angle"), trend.get("steepness")
    direction = trend.get("direction") or outcome.get("direction")
    return {
        "price": price,
        "angle": angle.number() / 90
        if angle
        else None
        if hourly is None
        else math.atan(hourly) / (math.pi / 2),
        "steepness": steep.number() if steep else None if hourly is None else math.log1p(abs(hourly)),
        "direction": _direction(direction, price),
    }


def _direction(given: _Place | None, price: float | None) -> int | None:
    if given is not None:
        word = _DIRECTION_WORDS.get(given.text().lower())
        if word is None:
            raise given.wrong(f"is {_shown(given.value)}; it must be one of LONG, SHORT, UP, DOWN and FLAT")
        return DIRECTIONS.index(word)
    return (
        None
        if price is None
        else DIRECTIONS.index("flat" if abs(price) < FLAT else "up" if price > 0 else "down")
    )


def _pivots(
    outcome: _Place, entry: float, span: tuple[float, float], later: Candles | None, levels: int
) -> list[float | None]:
    """Return the next pivot of each level in percent of the entry: given, or found in the holding period."""
    given = outcome.get("pivots")
    if given is not None:
        prices = [given.get(f"L{level + 1}") for level in range(levels)]
        return [None if one is None else 100 * math.log(one.number(above=0) / entry) for one in prices]
    if later is None:
        return [None] * levels
    start, stop = np.searchsorted(later.begin_N, span).tolist()
    high_N, low_N = later.values_NF[start:stop, 1], later.values_NF[start:stop, 2]
    found = [_next_pivot(high_N, low_N, 2 ** (level + 1)) for level in range(levels)]
    return [None if one is None else 100 * math.log(one / entry) for one in found]


def _next_pivot(high_N: NDArray[np.float64], low_N: NDArray[np.float64], width: int) -> float | None:
    """Return the first high that no candle of ``width`` on both sides reaches, or such a low."""
    if len(high_N) < 2 * width + 1:
        return None
    highs = np.lib.stride_tricks.sliding_window_view(high_N, 2 * width + 1)
    lows = np.lib.stride_tricks.sliding_window_view(low_N, 2 * width + 1)
    is_high, is_low = highs.argmax(axis=1) == width, lows.argmin(axis=1) == width
    places = np.flatnonzero(is_high | is_low)
    if not len(places):
        return None
    place = int(places[0])
    return float(high_N[place + width] if is_high[place] else low_N[place + width])
