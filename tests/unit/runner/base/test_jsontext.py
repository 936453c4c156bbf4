import json
from pathlib import Path

import pytest

from runner.base import jsontext as compact


def test_what_is_written_reads_as_before() -> None:
    value = {"text": 'a "word"\n', "none": None, "list": [1, 2.5, True], "tuple": (1,), "big": 2**80}
    assert json.loads(compact.dumps(value)) == json.loads(json.dumps(value))
    assert "\n" not in compact.dumps(value)


@pytest.mark.parametrize("word", ["\ud800", "caf\udce9.yaml"])
def test_text_that_is_not_in_utf_8_is_written_with_escapes(word: str) -> None:
    assert compact.dumps({"word": word}).isascii()
    assert json.loads(compact.dumps({"word": word})) == {"word": word}


def test_what_json_does_not_know_is_made_something_of() -> None:
    class Thing:
        def __repr__(self) -> str:
            return "a thing"

    assert json.loads(compact.dumps({"it": Thing(), "path": Path("/a")}, repr)) == {
        "it": "a thing",
        "path": "/a",
    }
    with pytest.raises(TypeError, match="not JSON serializable"):
        compact.dumps({"it": Thing()})
