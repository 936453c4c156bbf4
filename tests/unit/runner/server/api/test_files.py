"""An archive that cannot be completed, which its user may bring about again and again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.base.errors import UsageError
from runner.server.api import files as module
from runner.server.api.files import PartsResponse


async def _cut_short() -> AsyncIterator[bytes]:
    yield b"part"
    raise UsageError("out/model.pt: it became shorter while it was read")


async def _silent() -> AsyncIterator[bytes]:
    near, far = socket.socketpair()
    with near, far:
        archive: Any = SimpleNamespace(stream=near, problem=lambda: None, close=lambda: None)
        async for part in module._parts(archive):
            yield part


@pytest.mark.parametrize("parts", [_cut_short, _silent])
def test_an_answer_that_cannot_be_completed_is_one_line_of_the_log(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.0)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    with capture_logs() as logged:
        asyncio.run(PartsResponse(parts())(scope, receive, send))
    assert [each["event"] for each in logged] == ["files.cut_short"]
    assert all(each.get("more_body", True) for each in sent), "the client would take it for whole"
