"""Checks a store for damage when a daemon starts, and repairs indexes, which repeat what tables contain."""

import re
import sqlite3
from typing import Final

MOST_PROBLEMS: Final = 20
"""Problems of a damaged file that are looked for."""

_INDEX_PROBLEM: Final = re.compile(r"(row \d+ missing from|wrong # of entries in|non-unique entry in) index ")


def check_integrity(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Return the faults of the pages, tables and indexes of a database; nothing of a sound one.

    Damage inside a value is not seen: it is found when the value is read.
    """
    try:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})")]
    except sqlite3.OperationalError:  # for example a full disk, which is no damage
        raise
    except sqlite3.DatabaseError as error:
        return (str(error),)
    return () if found == ["ok"] else tuple(" ".join(each.split()) for each in found)


def repair_indexes(connection: sqlite3.Connection, problems: tuple[str, ...]) -> tuple[str, ...]:
    """Write the indexes again if nothing else is damaged; return the problems that remain."""
    if not problems or not all(_INDEX_PROBLEM.search(each) for each in problems):
        return problems
    try:
        connection.execute("REINDEX")
    except sqlite3.IntegrityError:  # a unique value occurs twice: a table is damaged, too
        return problems
    return check_integrity(connection)
