"""Calls of typed interfaces: messages, proxies and dispatchers follow from the signatures.

A request is JSON: ``op``, the name of the interface and of the method, and a field for each parameter.  What
is no field of the right type is refused before anything is done.  A parameter of the type ``Descriptor``
travels beside the frame, and so does an answer that is a ``Descriptor`` or a socket.  An interface of many
objects has a key, which says whose method is called.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import Parameter, Signature, getmembers, isfunction, signature
from pathlib import Path
from socket import socket
from types import SimpleNamespace
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
)

from runner.adapters.rpc.errors import ErrorKinds
from runner.adapters.rpc.frames import close_all
from runner.base.errors import Refused, Unavailable

Descriptor: TypeAlias = Annotated[int, "a descriptor, which travels beside the frame"]
"""A parameter belongs to the caller, who closes it; an answer belongs to whoever gets it."""

HostPath: TypeAlias = Annotated[
    Path,
    PlainSerializer(lambda path: os.fsencode(path).hex()),
    PlainValidator(
        lambda value: value if isinstance(value, Path) else Path(os.fsdecode(bytes.fromhex(value)))
    ),
]
"""A path of any bytes."""

Exchange: TypeAlias = Callable[[bytes, tuple[int, ...]], tuple[bytes, list[int]]]
"""Sends a request with its descriptors, and returns the answer with those of the answer."""

Answer: TypeAlias = Callable[[], tuple[bytes, list[int]]]
"""Waits for an answer, and returns it with its descriptors."""

Start: TypeAlias = Callable[[bytes, tuple[int, ...]], Answer]
"""Sends a request with its descriptors."""


class Message(BaseModel):
    """A request or an answer."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64", defer_build=True
    )


@dataclass(frozen=True, slots=True)
class Interface:
    """A class, or a ``Protocol``, whose public methods may be called."""

    methods: type
    key: type | None = None  # of the object whose method is called; None: there is one object


@dataclass(frozen=True, slots=True)
class _Call:
    """One method of one interface."""

    interface: str
    method: str
    signature: Signature  # without self
    request: type[Any]  # models made from the signature
    answer: type[Any]
    fields: tuple[str, ...]
    descriptors: tuple[str, ...]  # parameters
    opens: bool  # the answer is a descriptor or a socket
    as_socket: bool


@dataclass
class Calls:
    """The calls of some interfaces, for both ends of a connection.

    Models are made when they are first needed: a daemon that has no helper never calls one.
    """

    interfaces: Mapping[str, Interface]
    errors: ErrorKinds = field(default_factory=ErrorKinds)

    @cached_property
    def _by_op(self) -> dict[str, _Call]:
        made = (each for name, interface in self.interfaces.items() for each in _calls(name, interface))
        return {f"{each.interface}.{each.method}": each for each in made}

    @cached_property
    def _requests(self) -> TypeAdapter[Any]:
        union: Any = Union[tuple(each.request for each in self._by_op.values())]  # noqa: UP007  at run time
        return TypeAdapter(Annotated[union, Field(discriminator="op")])

    def prepare(self) -> None:
        """Make all models now, for processes that are forked from this one."""
        self._requests.rebuild()
        for call in self._by_op.values():
            call.answer.model_rebuild()

    def proxy(self, interface: str, exchange: Exchange, key: object = None) -> Any:  # noqa: ANN401
        """Return an object with the methods of an interface, which asks the other end.

        Its methods raise what the other end's work has raised, ``Unavailable`` if the other end is gone, and
        ``ValidationError`` for a value that the interface does not take.
        """
        made = {
            each.method: partial(self._invoke, each, exchange, {} if key is None else {"key": key})
            for each in self._by_op.values()
            if each.interface == interface
        }
        return SimpleNamespace(**made)

    def begin(self, op: str, start: Start, *args: object, **named: object) -> Callable[[], Any]:
        """Send a request now; return what waits for its answer, and returns or raises it as a proxy does."""
        return self._begin(self._by_op[op], start, {}, *args, **named)

    def _invoke(
        self, call: _Call, exchange: Exchange, key: dict[str, object], /, *args: object, **named: object
    ) -> object:
        return self._begin(call, lambda *request: partial(exchange, *request), key, *args, **named)()

    def _begin(
        self, call: _Call, start: Start, key: dict[str, object], /, *args: object, **named: object
    ) -> Callable[[], object]:
        values = call.signature.bind(*args, **named).arguments
        given = tuple(values.pop(name) for name in call.descriptors)
        request = call.request(**key, **values)
        return partial(self._value, call, start(request.model_dump_json().encode(), given))

    def _value(self, call: _Call, answer: Answer) -> object:
        content, opened = answer()
        with ExitStack() as unless_taken:
            unless_taken.callback(close_all, opened)
            self.errors.raise_if_any(content)
            value = call.answer.model_validate_json(content).value
            if not call.opens:
                return value
            if len(opened) != 1:
                raise Unavailable(f"{call.interface}.{call.method}: the answer has no descriptor")
            unless_taken.pop_all()
        return socket(fileno=opened[0]) if call.as_socket else opened[0]

    def do(
        self, targets: Mapping[str, Any], content: bytes, descriptors: list[int]
    ) -> tuple[bytes, tuple[int, ...]]:
        """Call what a request asks for, and return the answer with its descriptors.

        ``targets`` are the objects by their interfaces; of an interface with a key, a function that returns
        the object of a key.

        Raises:
            Exception: what the work raises.
            Refused: the content is no request.
        """
        try:
            request = self._requests.validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            at = ".".join(map(str, first["loc"]))[:200]
            raise Refused(f"not a request of this interface: {first['msg']} ({at})") from error
        call = self._by_op[request.op]
        if len(descriptors) != len(call.descriptors):
            raise Refused(
                f"{request.op} takes {len(call.descriptors)} descriptors, and {len(descriptors)} came"
            )
        arguments = {name: getattr(request, name) for name in call.fields}
        arguments |= dict(zip(call.descriptors, descriptors, strict=True))
        target = targets[call.interface]
        if self.interfaces[call.interface].key is not None:
            target = target(request.key)
        value = getattr(target, call.method)(**arguments)
        if not call.opens:
            return call.answer.model_construct(value=value).model_dump_json().encode(), ()
        opened = value.detach() if call.as_socket else value
        return call.answer.model_construct(value=None).model_dump_json().encode(), (opened,)


NO_VALUE: Final = type(None)


def _calls(name: str, interface: Interface) -> Iterator[_Call]:
    for method, function in getmembers(interface.methods, isfunction):
        if not method.startswith("_"):
            yield _call(name, method, function, interface.key)


def _call(interface: str, method: str, function: Callable[..., object], key: type | None) -> _Call:
    hints = get_type_hints(function, include_extras=True)
    whole = signature(function)
    parameters = list(whole.parameters.values())[1:]
    beside = tuple(each.name for each in parameters if hints[each.name] == Descriptor)
    fields: dict[str, Any] = {
        each.name: (hints[each.name], ... if each.default is Parameter.empty else each.default)
        for each in parameters
        if each.name not in beside
    }
    op, result = f"{interface}.{method}", hints.get("return", NO_VALUE)
    opens = result is socket or result == Descriptor
    base: dict[str, Any] = {"op": (Literal[op], op)} | ({} if key is None else {"key": (key, ...)})
    return _Call(
        interface,
        method,
        whole.replace(parameters=parameters),
        create_model(f"{op} request", __base__=Message, **base, **fields),
        create_model(f"{op} answer", __base__=Message, value=(NO_VALUE if opens else result, ...)),
        tuple(fields),
        beside,
        opens,
        result is socket,
    )
