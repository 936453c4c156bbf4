"""Reads and validates long panels: Parquet files with one row for each stock and day.

A panel has a column of dates, a column of codes, feature columns, one target column for each horizon, and
a column of daily returns.  Rows come in any order, in one file or in several files of a directory, in any
subdirectory.  A stock that has no row on a day is not *listed* on that day: before its listing, after its
delisting, or in a gap.  A missing number (null or NaN) is no error; an infinite one is, unless the job
cleans it.

``open_panel`` looks at the dates and codes of all files, so that every row has one place.  ``read``
then reads the numbers of all days; ``excerpt`` those of a few, and opens the files to do so.
An error names the file, the row (from 1) and the column.  Column names are compared without their case.
"""
# ruff: noqa: N806, N815 - arrays carry their shape: D days, N codes, F features, J targets, M rows

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jobs.contract.plans.base import Clean
from jobs.data.cleaning import Cleaner
from jobs.training.failures import InvalidSpec

SUFFIX: Final = ".parquet"

ISO: Final = "%Y-%m-%d"

_DAY_FORMATS: Final = (ISO, "%Y%m%d", "%Y/%m/%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
"""Ways to write a day; the first that fits the first row is that of the file."""

_MISSING: Final = "write null where a value is missing, or set clean: {inf: null}"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a panel as somebody names them; ``features`` are names or patterns with * and ?.

    A pattern selects columns of numbers.  What fits ``forbidden``, a pattern too, is never a feature: the
    targets, also those of horizons that are not forecast, are known only later.
    """

    date: str
    code: str
    features: tuple[str, ...]
    targets: tuple[str, ...]
    returns: str
    forbidden: str


@dataclass(frozen=True, slots=True)
class Values:
    """The numbers of consecutive days, float32; what is missing is NaN."""

    features_DNF: Tensor
    targets_DNJ: Tensor
    returns_DN: Tensor
    listed_DN: Tensor


@dataclass(frozen=True, slots=True)
class PanelFiles:
    """The files of a panel, with its dates (ISO text, oldest first) and codes in order.

    ``columns`` has the names as the files write them, and the features that the patterns selected.
    """

    files: tuple[Path, ...]
    columns: Columns
    dates: tuple[str, ...]
    codes: tuple[str, ...]
    clean: Clean | None = None
    day_format: str = ISO
    """Of dates that are text."""

    def read(self) -> Values:
        """Return the numbers of all days.

        Raises:
            InvalidSpec: a number is infinite, or a feature or a target has no number at all.
        """
        values, cleaner = self._empty(len(self.dates)), Cleaner(self.clean)
        for path in self.files:
            row = 0
            for part in _row_groups(path, self._names()):
                self._fill(values, part, (0, f"data: {path}", row), cleaner)
                row += len(part)
        for name, column in self._numbers(values):
            if not (~torch.isnan(column)).any():
                raise InvalidSpec(f"data: {self.files[0]}: {name} has no number in any row; leave it out")
        cleaner.tell()
        return values

    def excerpt(self, first: int, count: int) -> Values:
        """Return the numbers of ``count`` days from day number ``first`` on, read from the files."""
        from pyarrow import dataset

        values = self._empty(count)
        found = dataset.dataset([str(path) for path in self.files], format="parquet")
        kind = found.schema.field(self.columns.date).type
        begin, end = self.dates[first], str(np.datetime64(self.dates[first + count - 1]) + 1)
        day = dataset.field(self.columns.date)
        wanted = (day >= _scalar(begin, kind, self.day_format)) & (day < _scalar(end, kind, self.day_format))
        part = found.to_table(columns=list(self._names()), filter=wanted)
        self._fill(values, part, (first, "data", 0), Cleaner(self.clean))
        return values

    def _names(self) -> tuple[str, ...]:
        one = self.columns
        return tuple(dict.fromkeys((one.date, one.code, *one.features, *one.targets, one.returns)))

    def _empty(self, days: int) -> Values:
        shape, one = (days, len(self.codes)), self.columns
        return Values(
            torch.full((*shape, len(one.features)), torch.nan),
            torch.full((*shape, len(one.targets)), torch.nan),
            torch.full(shape, torch.nan),
            torch.zeros(shape, dtype=torch.bool),
        )

    def _numbers(self, values: Values) -> Iterator[tuple[str, Tensor]]:
        one = self.columns
        yield from ((name, values.features_DNF[:, :, f]) for f, name in enumerate(one.features))
        yield from ((name, values.targets_DNJ[:, :, j]) for j, name in enumerate(one.targets))
        yield one.returns, values.returns_DN

    def _fill(self, values: Values, part: Any, place: tuple[int, str, int], cleaner: Cleaner) -> None:
        """Write the rows of an Arrow table to their places.

        ``place`` is the first day, the file, and how many of its rows came before.
        """
        first, path, row = place
        known = np.array(self.dates, dtype="datetime64[D]")
        day_M = np.searchsorted(known, _days(part.column(self.columns.date), path, self.columns.date, row))
        place_M = day_M - first, self._code_places(part.column(self.columns.code))
        values.listed_DN.numpy()[place_M] = True
        for name, column in self._numbers(values):
            is_feature = name in self.columns.features
            column.numpy()[place_M] = _floats(
                part.column(name), f"{path}:", row, name, cleaner, numbers=is_feature
            )

    def _code_places(self, codes: Any) -> NDArray[np.int64]:
        import pyarrow as pa
        from pyarrow import compute

        found = compute.index_in(_texts(codes), value_set=pa.array(self.codes, pa.string()))
        places: NDArray[np.int64] = found.to_numpy().astype(np.int64)
        return places


def open_panel(path: Path, wanted: Columns) -> PanelFiles:
    """Return the panel of a Parquet file, or of all Parquet files below a directory.

    Raises:
        InvalidSpec: there is no file, a column is missing or has another type, a date or a code is invalid,
            or two rows have the same date and code.
    """
    if not path.exists():
        raise InvalidSpec(f"data: {path}: no such file or directory; correct data")
    below = path.rglob(f"*{SUFFIX}") if path.is_dir() else (path,)
    files = tuple(sorted(each for each in below if each.is_file()))
    if not files:
        raise InvalidSpec(f"data: no {SUFFIX} file below {path}; put the panel's files there")
    columns = _resolve(files[0], _schema(files[0]), wanted)
    for each in files[1:]:
        _compare(each, _schema(each), files[0], _schema(files[0]), columns)
    _check_types(files[0], _schema(files[0]), columns)
    return _placed(files, columns)


def _placed(files: tuple[Path, ...], columns: Columns) -> PanelFiles:
    """Return the panel with its dates and codes; every row has a date and a code that no other row has."""
    days, codes, codes_of = [], [], dict[str, int]()
    starts = [0]
    for path in files:
        table = _read(path, (columns.date, columns.code))
        days.append(_days(table.column(columns.date), f"data: {path}", columns.date, 0))
        codes.append(_code_numbers(table.column(columns.code), path, columns.code, codes_of))
        starts.append(starts[-1] + len(table))
    if not codes_of:
        raise InvalidSpec(f"data: {files[0]}: no rows; a panel has one for each stock and day")
    dates, day_M = np.unique(np.concatenate(days), return_inverse=True)
    cell_M = day_M.astype(np.int64) * len(codes_of) + np.concatenate(codes)
    order_M = np.argsort(cell_M, kind="stable")
    same = np.flatnonzero(np.diff(cell_M[order_M]) == 0)
    names = sorted(codes_of)
    if len(same):
        pair = order_M[same[0] : same[0] + 2]
        one, other = (_where(files, starts, int(row)) for row in pair)
        code = next(name for name, number in codes_of.items() if number == cell_M[pair[0]] % len(codes_of))
        day = dates[day_M[pair[0]]]
        raise InvalidSpec(f"data: {other}: {code} has a row for {day} in {one} already; keep one of them")
    written = _day_format(_read(files[0], (columns.date,)).column(columns.date))
    return PanelFiles(files, columns, tuple(map(str, dates)), tuple(names), day_format=written)


def _where(files: Sequence[Path], starts: Sequence[int], row: int) -> str:
    number = int(np.searchsorted(starts, row, side="right")) - 1
    return f"{files[number]}:{row - starts[number] + 1}"


# --- Columns


def _resolve(path: Path, schema: Any, wanted: Columns) -> Columns:
    """Return the columns with the names that the file has, and the features that the patterns select."""
    named = {name.lower(): name for name in schema.names}
    date, code = (
        _named(path, named, name, what) for what, name in (("date", wanted.date), ("code", wanted.code))
    )
    targets = tuple(_named(path, named, name, "target") for name in wanted.targets)
    returns = _named(path, named, wanted.returns, "returns")
    chosen = dict[str, None]()
    for pattern in wanted.features:
        chosen |= dict.fromkeys(_fitting(path, schema, pattern, {date, code}, wanted.forbidden))
    return Columns(date, code, tuple(chosen), targets, returns, wanted.forbidden)


def _fitting(path: Path, schema: Any, pattern: str, keys: set[str], forbidden: str) -> list[str]:
    """Return the column of a name, or the columns of numbers that fit a pattern."""
    fitting = [name for name in schema.names if fnmatchcase(name.lower(), pattern.lower())]
    later = [name for name in fitting if fnmatchcase(name.lower(), forbidden.lower())]
    if is_name := pattern.lower() in map(str.lower, fitting):
        wrong = next((name for name in fitting if name in keys or name in later), None)
        if wrong is not None:
            what = "a target, which is known only later" if wrong in later else "the date or the code"
            raise InvalidSpec(f"data: {path}: {wrong} is {what}; take it out of panel.features")
    found = [
        name
        for name in fitting
        if name not in keys and name not in later and (is_name or _is_number(schema.field(name).type))
    ]
    if not found:
        raise InvalidSpec(
            f"data: {path}: no column of numbers fits {pattern!r}; there are {_some(schema.names)}"
        )
    return found


def _named(path: Path, named: dict[str, str], name: str, what: str) -> str:
    if name.lower() not in named:
        raise InvalidSpec(
            f"data: {path}: no column {name!r} for panel.{what}; there are {_some(list(named.values()))}"
        )
    return named[name.lower()]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8]) or "none"
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _check_types(path: Path, schema: Any, columns: Columns) -> None:
    from pyarrow import types

    for name in (*columns.features, *columns.targets, columns.returns):
        kind = schema.field(name).type
        if not _is_number(kind):
            raise InvalidSpec(f"data: {path}: {name} is a column of {kind}; it must hold numbers")
    kind = schema.field(columns.date).type
    is_time = types.is_timestamp(kind)
    if not (types.is_date(kind) or is_time or _is_text(kind)):
        raise InvalidSpec(
            f"data: {path}: {columns.date} is a column of {kind}; write dates, or text 2024-12-31"
        )
    kind = schema.field(columns.code).type
    if not (types.is_integer(kind) or _is_text(kind)):
        raise InvalidSpec(
            f"data: {path}: {columns.code} is a column of {kind}; codes are text or whole numbers"
        )


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _compare(path: Path, schema: Any, first: Path, known: Any, columns: Columns) -> None:
    """Refuse a file whose columns are not those of the first file."""
    for name in (columns.date, columns.code, *columns.features, *columns.targets, columns.returns):
        if name not in schema.names:
            raise InvalidSpec(
                f"data: {path}: no column {name}, which {first.name} has; write it, null if unknown"
            )
        found, expected = schema.field(name).type, known.field(name).type
        if found != expected:
            raise InvalidSpec(
                f"data: {path}: {name} is a column of {found}, and of {expected} in {first.name};"
                " write all files with the same types"
            )


# --- Arrow


def _schema(path: Path) -> Any:
    from pyarrow import parquet

    return _opened(path, lambda: parquet.read_schema(path))


def _read(path: Path, names: Sequence[str]) -> Any:
    from pyarrow import parquet

    return _opened(path, lambda: parquet.ParquetFile(path).read(columns=list(names)))


def _row_groups(path: Path, names: Sequence[str]) -> Iterator[Any]:
    """Yield a file in its row groups, so that a large file is never in memory twice."""
    from pyarrow import parquet

    found = _opened(path, lambda: parquet.ParquetFile(path))
    for number in range(found.num_row_groups):
        yield _opened(path, lambda number=number: found.read_row_group(number, columns=list(names)))


def _opened(path: Path, read: Any) -> Any:
    import pyarrow as pa

    try:
        return read()
    except (OSError, pa.ArrowException) as error:
        fact = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InvalidSpec(f"data: {path}: {fact}; write the Parquet file again, to its end") from error


def _scalar(day: str, kind: Any, day_format: str) -> Any:
    """Return the beginning of a day as a column of dates writes it."""
    import pyarrow as pa
    from pyarrow import compute

    begin = np.datetime64(day, "s").astype(object)
    if _is_text(kind):
        return pa.scalar(begin.strftime(day_format))
    zone = getattr(kind, "tz", None)
    return (compute.assume_timezone(pa.scalar(begin), zone) if zone else pa.scalar(begin)).cast(kind)


def _day_format(column: Any) -> str:
    """Return the way in which a column writes its days, from its first row."""
    from pyarrow import compute

    if not _is_text(column.type) or not len(column):
        return ISO
    first = _texts(column.slice(0, 1))
    parsed = (compute.strptime(first, format=one, unit="s", error_is_null=True) for one in _DAY_FORMATS)
    return next((one for one, at in zip(_DAY_FORMATS, parsed, strict=True) if at.null_count == 0), ISO)


def _days(column: Any, path: str, name: str, row: int) -> NDArray[np.datetime64]:
    """Return the days of a column of dates, of times (in their own zone), or of text."""
    import pyarrow as pa
    from pyarrow import compute

    given, kind = column, column.type
    if _is_text(kind):
        texts, written = _texts(column), _day_format(column)
        column = compute.strptime(texts, format=written, unit="s", error_is_null=True)
        again = compute.strftime(column, format=written)
        wrong = compute.invert(compute.fill_null(compute.equal(again, texts), fill_value=False))
    else:
        wrong = compute.is_null(column)
        column = compute.local_timestamp(column) if getattr(kind, "tz", None) else column
    place = compute.index(wrong, value=True).as_py()
    if place >= 0:
        fact = repr(given[place].as_py()) if given[place].is_valid else "missing"
        raise InvalidSpec(f"{path}:{row + place + 1}: {name} is {fact}; write it as 2024-12-31")
    days: NDArray[np.datetime64] = column.cast(pa.date32(), safe=False).to_numpy().astype("datetime64[D]")
    return days


def _texts(codes: Any) -> Any:
    import pyarrow as pa

    return codes.cast(pa.string())


def _code_numbers(codes: Any, path: Path, name: str, numbers: dict[str, int]) -> NDArray[np.int64]:
    """Return the number of the code of each row, and add new codes to ``numbers``."""
    from pyarrow import compute

    texts = _texts(codes)
    empty = compute.fill_null(compute.equal(compute.utf8_trim_whitespace(texts), ""), fill_value=True)
    place = compute.index(empty, value=True).as_py()
    if place >= 0:
        raise InvalidSpec(f"data: {path}:{place + 1}: {name} is empty; every row names its stock")
    encoded = texts.combine_chunks().dictionary_encode()
    own = [numbers.setdefault(code, len(numbers)) for code in encoded.dictionary.to_pylist()]
    found: NDArray[np.int64] = np.array(own, dtype=np.int64)[encoded.indices.to_numpy()]
    return found


def _floats(  # noqa: PLR0913  (a column, its place, and what is done to it)
    column: Any,
    path: str,
    row: int,
    name: str,
    cleaner: Cleaner,
    *,
    numbers: bool,
) -> NDArray[np.float32]:
    """Return a column as float32, NaN where a number is missing."""
    import pyarrow as pa

    values = column.cast(pa.float64()).to_numpy()
    with np.errstate(over="ignore"):
        single, _ = cleaner.clean(values.astype(np.float32), numbers=numbers)
    wrong = np.isinf(single)
    if wrong.any():
        place = int(wrong.argmax())
        fact = f"{name} is {float(values[place]):g}, beyond what float32 holds"
        raise InvalidSpec(f"{path}{row + place + 1}: {fact}; {_MISSING}")
    return single
