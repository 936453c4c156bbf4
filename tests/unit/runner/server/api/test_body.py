"""What a body or a message holds is bounded before it is parsed: the event loop answers everybody."""

import asyncio

import httpx
import pytest

from runner.base.errors import UsageError
from runner.server.api.body import MOST_VALUES
from runner.server.api.jobs import MAX_CANCELLED
from runner.server.api.sessions import MOST_MISTAKES, ControlBody, ExecBody, parse_message
from tests.fakes.patience import patience
from tests.unit.runner.server.api.test_jobs import ME, Site, error
from tests.unit.runner.server.api.test_jobs import site as site  # noqa: PLC0414  a fixture


def send(site: Site, content: bytes) -> httpx.Response:
    """Cancel what a body says, byte by byte."""

    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(site.app, client=(f"{ME}:{ME}", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://runner") as client:
            headers = {"content-type": "application/json"}
            return await client.post("/v1/cancel", content=content, headers=headers, timeout=patience())

    return asyncio.run(exchange())


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        ({"jobs": [1] * (MOST_VALUES + 1)}, f"body.0: has more than {MOST_VALUES} values or commas"),
        (
            {f"k{number}": 1 for number in range(3000)},
            f"body.0: has more than {MOST_VALUES} values or commas",
        ),
        ({"jobs": ["1"] * (MAX_CANCELLED + 1)}, "body.jobs: Tuple should have at most 1000 items"),
    ],
)
def test_a_body_of_more_values_than_any_request_has_is_refused_unread(
    site: Site, body: dict[str, object], fact: str
) -> None:
    status, _, message = error(site.ask("POST", "/cancel", body))
    assert status == 422
    assert message.startswith(fact)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (b'{"jobs": [1,]}', "body.12: Expecting value"),
        (b"[" * 100_000, "There was an error parsing the body"),
    ],
)
def test_a_body_that_is_no_json_is_told_with_its_place(site: Site, text: bytes, fact: str) -> None:
    answer = send(site, text)
    assert answer.is_client_error
    assert fact in answer.text


def test_the_text_of_another_encoding_is_read_as_before(site: Site) -> None:
    answer = send(site, '{"jobs": ["\u00e9"]}'.encode("utf-16"))
    assert "\u00e9: there is no job" in answer.json()["error"]["message"]


def test_a_message_of_a_session_with_many_mistakes_is_refused_without_a_list_of_them() -> None:
    with pytest.raises(UsageError, match=r"^argv\.0: Input should be a valid string$"):
        parse_message('{"argv": [' + "1," * 1000 + "1]}", ExecBody)
    text = "{" + ",".join(f'"k{number}": 1' for number in range(MOST_MISTAKES + 1)) + "}"
    with pytest.raises(UsageError, match=r"^message: has more than 100 mistakes$"):
        parse_message(text, ControlBody)
