"""The micro-batch of ``micro_batch: auto``: the largest equal part of the batch that fits on the device.

The size is found by trial steps before the first step, and kept in the lineage.  Every later attempt of
the lineage takes the kept size, because another size rounds differently and draws other dropout masks.
A CPU has no memory of its own that could be measured, and small parts stay in its caches: there, the size
follows from the batch alone (``batches.automatic_size``).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from jobs.checkpoint import durable as files
from jobs.contract import MANIFEST, Manifest, checkpoints, read_limited

FILLED: Final = 0.95
"""The largest share of the device's memory that a trial step may take."""

FILE: Final = "micro-batch.json"
"""The kept size, in the directory of the lineage."""

MAX_BYTES: Final = 1024
MAX_MANIFEST_BYTES: Final = 4 * 1024 * 1024


def rows_of(batch_size: int, parts: int) -> int:
    """Return the rows of the largest part if a batch is divided into equal parts."""
    return -(-batch_size // parts)


def fewest_parts(most: int, fits: Callable[[int], bool]) -> int:
    """Return the smallest number of parts that fits, by bisection; ``most`` parts are known to fit."""
    too_few, enough = 0, most
    while enough - too_few > 1:
        parts = (too_few + enough) // 2
        if fits(parts):
            enough = parts
        else:
            too_few = parts
    return enough


def kept_rows(lineage_dir: Path, batch_size: int, revision: int) -> int | None:
    """Return the size with which a lineage began, None if it has not begun.

    A lineage without the file began before sizes were kept: its newest checkpoint tells the size, unless
    that checkpoint belongs to another revision, which may have requested another size.
    """
    try:
        kept = json.loads(read_limited(lineage_dir / FILE, MAX_BYTES))
        if kept["batch_size"] == batch_size and 1 <= int(kept["rows"]) <= batch_size:
            return int(kept["rows"])
    except (OSError, ValueError, LookupError, TypeError):
        return _saved_rows(lineage_dir, batch_size, revision)
    return None


def _saved_rows(lineage_dir: Path, batch_size: int, revision: int) -> int | None:
    for _, path in checkpoints(lineage_dir):
        try:
            saved = Manifest.model_validate_json(read_limited(path / MANIFEST, MAX_MANIFEST_BYTES))
        except (OSError, ValidationError):
            continue  # the resume rejects it and says so
        rows = saved.environment.get("micro_batch", "")
        if saved.revision == revision and rows.isdecimal() and 1 <= int(rows) <= batch_size:
            return int(rows)
        return None
    return None


def keep_rows(lineage_dir: Path, batch_size: int, rows: int) -> None:
    """Keep the size for the later attempts of a lineage.

    Raises:
        OSError: It cannot be written.
    """
    files.replace(lineage_dir / FILE, json.dumps({"batch_size": batch_size, "rows": rows}).encode())


def larger_rows(rows: int, batch_size: int, peak_bytes: int, room_bytes: int) -> int | None:
    """Return a larger micro-batch that fits for certain, None if there is none.

    The estimate is cautious: it takes the whole peak to grow with the rows, weights included.
    """
    fitting = rows
    while fitting < batch_size and peak_bytes * min(2 * fitting, batch_size) <= FILLED * room_bytes * rows:
        fitting = min(2 * fitting, batch_size)
    return fitting if fitting > rows else None
