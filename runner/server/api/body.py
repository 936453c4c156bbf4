"""The body of a request as JSON.  The event loop parses it, so its work is bounded before it begins."""

import json
from typing import Any, Final

from fastapi import Request
from pydantic_core import from_json
from typing_extensions import override

MOST_VALUES: Final = 2048
"""Values in the body of a request, by its commas; the longest are ids of jobs, and the base64 of files has
none.  A list of a million wrong ones takes seconds to refuse."""


class JsonRequest(Request):
    """A request whose body may be long, but has few values."""

    @override
    async def json(self) -> Any:
        """Return the values of the body.

        Raises:
            json.JSONDecodeError: it is no JSON, or has more values than any request.
        """
        body = await self.body()
        if body.count(b",") >= MOST_VALUES:
            raise json.JSONDecodeError(f"has more than {MOST_VALUES} values or commas", "", 0)
        try:
            return from_json(body)  # without a copy of it as text
        except ValueError:
            return await super().json()  # which says where it is wrong
