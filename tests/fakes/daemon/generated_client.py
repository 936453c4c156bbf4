"""A client of the HTTP API that is generated from its OpenAPI document, and checks what it is answered."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]

Json = dict[str, Any]
Ask = Callable[[str, str, Json, Json | None], tuple[int, Any]]
"""Method, path, query and body of a request; returns status and answer."""


def client_source(document: Json) -> str:
    """Return the source of a class with a method for each request whose answer is JSON."""
    lines = ["class Client:", "    def __init__(self, ask): self.ask = ask"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if any("application/json" in each["content"] for each in answers(operation).values()):
                lines += _method(path, method, operation)
    return "\n".join(lines)


def answers(operation: Json) -> Json:
    return {number: each for number, each in operation["responses"].items() if number != "default"}


def _method(path: str, method: str, operation: Json) -> Iterator[str]:
    name = operation["summary"].lower().replace(" ", "_")
    places = re.findall(r"{(\w+)}", path)
    queries = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    body = ["body"] if "requestBody" in operation else []
    arguments = [*places, *body, *(f"{each}=None" for each in queries)]
    yield f"    def {name}(self, {', '.join(arguments)}):"
    yield f"        query = {{{', '.join(f'{each!r}: {each}' for each in queries)}}}"
    yield f"        return self.ask({method!r}, f{path!r}, query, {'body' if body else None})"


class Checker:
    """Compares answers with the document that describes them."""

    def __init__(self, document: Json) -> None:
        self.components = document["components"]
        self.operations = [
            (re.compile(re.sub(r"{\w+}", "[^/]+", path)), method, operation)
            for path, operations in sorted(document["paths"].items(), key=lambda each: "{" in each[0])
            for method, operation in operations.items()
        ]

    def problem(self, method: str, path: str, status: int, answer: Any) -> str:
        """Return what in an answer is not as described; empty: nothing."""
        for pattern, verb, operation in self.operations:
            if verb == method.lower() and pattern.fullmatch(path):
                found = operation["responses"].get(str(status), operation["responses"]["default"])
                schema = {**found["content"]["application/json"]["schema"], "components": self.components}
                return _first_problem(schema, answer)
        return "no such request"


def _first_problem(schema: Json, answer: Any) -> str:
    for error in jsonschema.Draft202012Validator(schema).iter_errors(answer):
        return f"{error.json_path}: {error.message[:200]}"
    return ""
