"""The generated part of ``docs/reference/api.md``: each request of the HTTP API, by its OpenAPI document."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from runner.server.api import (
    curves,
    devices,
    diff,
    files,
    jobs,
    retention,
    rollouts,
    schedules,
    settings,
    status,
    sweeps,
)
from runner.server.api.application import Application

ROUTES: Final = (jobs, files, curves, sweeps, rollouts, diff, schedules, devices, status, retention, settings)


def document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes, as a daemon answers ``GET /openapi.json`` with it."""
    app = Application(title="runner", version="1")
    for module in ROUTES:
        app.router.routes.extend(module.router.routes)
    return app.openapi()


def reference() -> str:
    """Return each request with its parameters, its body and its answers, and the types that they name."""
    described = document()
    return "\n".join(
        [
            *(
                line
                for path, operations in described["paths"].items()
                for method, operation in operations.items()
                for line in _request(method, path, operation)
            ),
            "## Types\n",
            "What is not listed as optional is always there; `null` is unknown or none.\n",
            *(
                line
                for name, schema in sorted(described["components"]["schemas"].items())
                if "Validation" not in name
                for line in _type(name, schema)
            ),
        ]
    )


def _request(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {method.upper()} {path}\n"
    yield f"{_first_line(operation)}\n"
    for each in operation.get("parameters", ()):
        if each["in"] == "query":
            default = each["schema"].get("default")
            otherwise = "" if default is None else f" = {default}"
            yield f"- query `{each['name']}`: {_name(each['schema'])}{otherwise}"
    if (body := operation.get("requestBody")) is not None:
        yield f"- body: {_name(body['content']['application/json']['schema'])}"
    for number, answer in sorted(operation["responses"].items()):
        if number != "default":
            ((kind, content),) = answer["content"].items()
            shown = _name(content["schema"]) if "schema" in content else f"`{kind}`"
            yield f"- {number}: {shown}"
    yield ""


def _first_line(described: Mapping[str, Any]) -> str:
    return str(described.get("description", "")).partition("\n")[0].replace("``", "`")


def _type(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if described := _first_line(schema):
        yield f"{described}\n"
    if "properties" not in schema:
        yield f"{_name(schema)}\n"
    required = schema.get("required", ())
    alike = defaultdict(list)
    for field, each in schema.get("properties", {}).items():
        alike[_name(each) + ("" if field in required else ", optional")].append(f"`{field}`")
    yield from (f"- {kind}: {', '.join(fields)}" for kind, fields in alike.items())
    yield ""


def _name(schema: Mapping[str, Any]) -> str:
    """Return a type as words, with a link if it has a section of its own."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_name(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {_name(schema.get('items', {}))}"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {_name(values)}" if isinstance(values, Mapping) and values else "object"
        case str() as known:
            return known
        case _:
            return "any"
