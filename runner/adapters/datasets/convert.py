"""Converts the files of a package to the portable form of a data set, with the standard library alone.

Each conversion takes the verified content of the package's files, by path, and returns
the files of the prepared directory.  The same input gives the same bytes everywhere.
"""

import csv
import gzip
import io
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from runner.adapters.datasets.npy import float32_file, read_object

Files: TypeAlias = Mapping[str, bytes]

_SDF_TAG: Final = re.compile(r"^>\s+<([^>]+)>.*$")


def watch(members: Files) -> Files:
    """Return one array per recording and ``index.csv``; the package has them in one pickle."""
    (raw,) = members.values()
    found: dict[str, Any] = read_object(raw)
    names = [str(name) for name in found["y_labels"]]
    files: dict[str, bytes] = {}
    rows = []
    labels, subjects = found["y"].numbers(), found["subject"].numbers()
    for number, (recording, label, subject) in enumerate(zip(found["X"], labels, subjects, strict=True)):
        path = f"recordings/{number:03d}.npy"
        files[path] = float32_file(recording.numbers(), recording.shape)
        rows.append((path, int(subject), names[int(label)], recording.shape[0]))
    files["index.csv"] = _csv(("file", "subject", "activity", "samples"), rows)
    return files


def sp500_stocks(members: Files) -> Files:
    """Return ``prices.csv``: the package's table, unpacked, with ``date`` as the name of its first column."""
    (packed,) = members.values()
    (_, *tickers), *rows = _rows(packed)
    return {"prices.csv": _csv(("date", *tickers), rows)}


def index_ohlcv(members: Files) -> Files:
    """Return one table per index: dates as ISO 8601, and no adjusted close, which indexes do not have."""
    return {path.rpartition("/")[2].removesuffix(".gz"): _ohlcv(packed) for path, packed in members.items()}


def solubility(members: Files) -> Files:
    """Return ``molecules.csv``; the SMILES are in the tags, so the structures are not needed."""
    rows = [
        (tags["smiles"], tags["sol"], tags["sol_classification"].partition(") ")[2], split)
        for path, raw in members.items()
        for split in (path.split(".")[-2],)
        for tags in _molecules(raw.decode())
    ]
    return {"molecules.csv": _csv(("smiles", "logs", "class", "split"), rows)}


def _ohlcv(packed: bytes) -> bytes:
    (_, *_names), *rows = _rows(packed)
    dated = ((_iso(day), *prices[:4], volume) for day, *prices, volume in rows)
    return _csv(("date", "open", "high", "low", "close", "volume"), dated)


def _iso(american: str) -> str:
    return datetime.strptime(american, "%m/%d/%Y").replace(tzinfo=UTC).date().isoformat()


def _molecules(text: str) -> Iterable[dict[str, str]]:
    """Yield the tags of every molecule; the two files write them in different case."""
    for record in text.split("$$$$")[:-1]:
        lines = record.splitlines()
        yield {
            match[1].lower(): lines[i + 1].strip()
            for i, line in enumerate(lines)
            if (match := _SDF_TAG.match(line))
        }


def _rows(packed: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(gzip.decompress(packed).decode())))


def _csv(header: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


CONVERSIONS: Final[Mapping[str, Callable[[Files], Files]]] = MappingProxyType(
    {
        "watch": watch,
        "sp500-stocks": sp500_stocks,
        "index-ohlcv": index_ohlcv,
        "solubility": solubility,
    }
)
