"""JSON as text for what is written thousands of times: decisions and the daemon's log.

pydantic's writer takes a quarter of the time that ``json`` takes; what it refuses (text that is not
in UTF-8, as in a strange file name) ``json`` writes with escapes.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic_core import PydanticSerializationError, to_json


def dumps(value: object, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as one line of JSON; ``default`` makes something of what JSON does not know."""
    try:
        return to_json(value, fallback=default).decode()
    except PydanticSerializationError:
        return json.dumps(value, default=default)
