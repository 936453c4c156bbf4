"""A Docker engine behind the port ``images.ports.Engine``: the only import of ``docker`` in ``images``.

No single builder works everywhere, so there are three: the ``buildx`` plugin if it is installed; the BuildKit
of the engine, by ``POST /build?version=2`` over the session of the SDK, which has no call for it; the classic
builder.  Builds have no network, because everything that they need is in the context.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from math import ceil
from pathlib import Path
from socket import AF_UNIX, socket
from threading import Thread
from typing import IO, Any, Final, TypeAlias

import docker
import requests
from docker.constants import DEFAULT_TIMEOUT_SECONDS, DEFAULT_UNIX_SOCKET
from docker.errors import APIError, DockerException, ImageNotFound, InvalidConfigFile, NotFound
from docker.types import CancellableStream, LogConfig, Mount
from docker.utils.config import find_config_file

from images import buildx
from images.buildkit_progress import ProgressDecoder
from images.cancellation import CancellationToken, deadline
from images.errors import (
    BuildFailed,
    EngineForbidden,
    EngineUnavailable,
    HostFault,
    failure,
    look_up_failure,
    pull_failure,
)
from images.ports import MAX_OUTPUT_BYTES, Addition, BuildRequest, Image, Step, StepEnd
from images.pull_progress import PullProgress
from images.settings import BuilderKind

_STEP_NAME: Final = "runner-step-"
"""Beginning of the names of the containers of commands; the process that made it follows."""

_ACTIVE: Final[set[str]] = set()
"""The names of the containers of commands that this process uses."""

_ENGINE_LACKS: Final = re.compile(
    r"containerd\.sock|error while dialing|transport is closing|ttrpc: closed|shutting down", re.IGNORECASE
)
"""Words of an engine that its own parts do not answer, as while they are upgraded."""

_END_S: Final = 10
"""Until a command that was killed has ended: a process of its user on this host may delay that for ever, as
its tracer, or keep its output open."""

_PULL_SILENCE_S: Final = 20
"""A registry that is silent for so long is unavailable; a pull that makes progress reports it."""

_LAYER_SILENCE_S: Final = 600
"""The longest silence in the pull of an image of others: a large layer is checked without a word."""

_BUILDKIT_API: Final = (1, 39)
"""The first version of the engine API that has ``/build?version=2``."""

_TAR: Final = {"Content-Type": "application/x-tar"}
_CHUNK_BYTES: Final = 1024**2
_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


Body: TypeAlias = IO[bytes] | Iterable[bytes]
"""A file, or its parts."""


class DockerEngine:
    """Satisfies ``images.ports.Engine`` with a Docker engine, or an engine with the same API."""

    def __init__(self, url: str | None = None, login: Path | None = None) -> None:
        """``login``: the file that ``docker login`` has left for pulls; None: in the home of this process."""
        self._url = url
        self._login = login
        self._version = "auto"  # asked once, for otherwise each new client asks

    def image(self, reference: str) -> Image | None:
        with self._client(f"inspect {reference}") as api:
            try:
                return _image(api.inspect_image(reference))  # type: ignore[no-untyped-call]
            except ImageNotFound:
                return None

    def inspect(self, reference: str) -> Mapping[str, Any]:
        with self._client(f"inspect {reference}") as api:
            try:
                found: dict[str, Any] = api.inspect_image(reference)  # type: ignore[no-untyped-call]
            except ImageNotFound as error:
                raise BuildFailed(f"image {reference}: is not in the engine") from error
        return found

    def images(self, label: str) -> tuple[Image, ...]:
        with self._client("list images") as api:
            return tuple(_image(row) for row in api.images(filters={"label": label}))

    def tag(self, image: str, tag: str) -> None:
        with self._client(f"tag {tag}") as api:
            repository, name = tag.rsplit(":", 1)
            try:
                api.tag(image, repository, name)
            except APIError:  # the containerd store refuses one of two that move a tag at the same time
                api.tag(image, repository, name)

    def pull(
        self, reference: str, say: Callable[[str], None] | None = None, token: CancellationToken | None = None
    ) -> None:
        token = token or CancellationToken()
        with self._client(f"pull {reference}", _PULL_SILENCE_S if say is None else _LAYER_SILENCE_S) as api:
            self._use_login(api)
            try:
                progress = PullProgress(reference)
                for record in api.pull(reference, stream=True, decode=True):
                    token.check()
                    line = progress.line(record)
                    if line is not None and say is not None:
                        say(line)
            except (APIError, requests.RequestException) as error:
                raise pull_failure(reference, _registry_words(error)) from error
            except DockerException as error:  # of a store of logins
                raise BuildFailed(f"pull {reference}: {_one_line(error)}") from error

    def look_up(self, reference: str) -> str:
        with self._client(f"look up {reference}", _PULL_SILENCE_S) as api:
            self._use_login(api)
            try:
                found = api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
            except (APIError, requests.RequestException) as error:
                raise look_up_failure(reference, _registry_words(error)) from error
            except DockerException as error:  # of a store of logins
                raise BuildFailed(f"image {reference}: {_one_line(error)}") from error
        return str(found["Descriptor"]["digest"])

    def _use_login(self, api: docker.APIClient) -> None:
        """Let a client use the login of the operator.

        Raises:
            BuildFailed: its file cannot be read.
        """
        if self._login is None:
            return
        try:
            self._login.read_bytes()  # the SDK would go on without
        except OSError as error:
            raise BuildFailed(f"registry_login: {self._login}: {error.strerror}") from error
        with _login_errors(str(self._login)):
            api.reload_config(str(self._login))

    def load_root(self, archive: IO[bytes], tag: str) -> str:
        repository, name = tag.rsplit(":", 1)
        params = {"fromSrc": "-", "repo": repository, "tag": name, "changes": f"ENV PATH={_DEFAULT_PATH}"}
        for record in self._post("images/create", params, archive, CancellationToken()):
            if "error" in record:
                raise failure(f"import {tag}: {record['error']}")
        found = self.image(tag)
        if found is None:
            raise BuildFailed(f"import {tag}: the engine has accepted it and does not have it")
        return found.id

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        token = token or CancellationToken()
        with self._client("run a command") as api, _step_container(api, step, step.argv[0]) as container:
            try:
                with token.on_cancel(partial(self._kill, container)):
                    end = _finish_step(api, container, step, partial(self._kill, container))
                token.check()
                return end
            finally:
                self._remove(container)

    def add_layer(self, addition: Addition, layer: Iterable[bytes], token: CancellationToken) -> None:
        """Make an image by a commit of a container that got the layer and did not run.

        All engines and image stores have commits.  A build would write the layer twice more.
        """
        config = self.inspect(addition.below)["Config"]
        argv = ("rm", "-rf", "--", *addition.removed)
        remove = Step(addition.below, argv, root=True, seconds=_LAYER_SILENCE_S)
        action = f"add to {addition.below}"
        with (
            self._client(action, _LAYER_SILENCE_S) as api,
            _step_container(api, remove, addition.tag) as container,
        ):
            try:
                if addition.removed:
                    end = _finish_step(api, container, remove, partial(self._kill, container))
                    if end.exit_code != 0:
                        raise BuildFailed(f"rm: {' '.join(end.output.split())}")
                api.put_archive(container, "/", _chunks(layer, token))
                repository, tag = addition.tag.rsplit(":", 1)
                api.commit(container, repository, tag, conf=_added_config(addition, config))
            except APIError as error:
                raise _step_failure(addition.tag, error) from error
            finally:  # many files take as long to remove as to write
                Thread(target=self._remove, args=(container,), name="removal", daemon=True).start()
        token.check()

    def _remove(self, container: str) -> None:
        """Remove a container, also from another thread; if the engine does not, ``_sweep_steps`` does."""
        with suppress(EngineUnavailable), self._client("remove") as api:
            api.remove_container(container, v=True, force=True)

    def _kill(self, container: str) -> None:
        """Kill a container from another thread; one that has ended, or that the engine forgot, is dead."""
        with suppress(EngineUnavailable), self._client("kill") as api:
            api.kill(container)

    def builders(self) -> Iterator[BuilderKind]:
        if buildx.is_available():
            yield "buildx"
        with self._client("version") as api:
            parts = [part["Name"] for part in api.version().get("Components", [])]
            version = tuple(int(part) for part in api.api_version.split("."))
        # Podman has other components, and ignores the parameter.
        if "Engine" in parts and version >= _BUILDKIT_API:
            yield "engine"
        yield "classic"

    def platform(self) -> str:
        with self._client("version") as api:
            version = api.version()
        return f"{version['Os']}/{version['Arch']}"

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], token: CancellationToken
    ) -> Iterator[str]:
        match kind:
            case "buildx":
                yield from buildx.build(request, context, self._url, token)
            case "engine":
                params = _build_params(request, "2")
                yield from _buildkit_lines(self._post("build", params, context, token))
            case "classic":
                params = _build_params(request, "1")
                for record in self._post("build", params, context, token):
                    yield from _plain_lines(record)

    def used(self) -> frozenset[str]:
        with self._client("list containers") as api:
            return frozenset(row["ImageID"] for row in api.containers(all=True))

    def remove(self, reference: str) -> None:
        with self._client(f"remove {reference}") as api:
            try:
                api.remove_image(reference)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != requests.codes.conflict:
                    raise

    def _post(
        self,
        path: str,
        params: Mapping[str, str],
        body: IO[bytes] | Iterable[bytes],
        token: CancellationToken,
    ) -> Iterator[dict[str, Any]]:
        """Send a tar and yield the records of the answer, which may be silent for any time."""
        with self._client(path) as api:
            url = f"{api.base_url}/v{api.api_version}/{path}"
            chunks = _chunks(body, token)
            with api.post(url, data=chunks, params=params, headers=_TAR, stream=True, timeout=None) as answer:
                if not answer.ok:
                    raise failure(f"{path}: {_message(answer.text)}")
                lines = answer.iter_lines(chunk_size=None)
                with token.on_cancel(partial(_disconnect, CancellableStream(lines, answer))):
                    yield from map(_record, filter(None, lines))

    @contextmanager
    def _client(self, action: str, timeout_s: int = DEFAULT_TIMEOUT_SECONDS) -> Iterator[docker.APIClient]:
        """Yield a client for one request: the SDK's clients are not safe to share between threads."""
        with _translated("connect"):
            api = self._connect(timeout_s)
        with closing(api), _translated(action):
            yield api

    def _connect(self, timeout_s: int) -> docker.APIClient:
        url = self._url or os.environ.get("DOCKER_HOST") or DEFAULT_UNIX_SOCKET
        if "unix://" in url:
            _check_socket("/" + url.split("://")[1].lstrip("/"))
        with _login_errors(find_config_file()):  # every client reads it
            if self._url is not None:
                api = docker.APIClient(self._url, self._version, timeout_s)
            else:
                api = docker.from_env(version=self._version, timeout=timeout_s).api  # with its TLS settings
        self._version = api.api_version
        return api


@contextmanager
def _login_errors(path: object) -> Iterator[None]:
    """Translate what the SDK raises of a file that ``docker login`` has not written."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, RecursionError, InvalidConfigFile) as error:
        raise EngineUnavailable(f"{path}: is not a file of docker login: {error}; log in again") from error


def _check_socket(path: str) -> None:
    """Raise with a clear message if nobody listens; the SDK would also leave a socket open."""
    try:
        with socket(AF_UNIX) as probe:
            probe.settimeout(DEFAULT_TIMEOUT_SECONDS)
            probe.connect(path)
    except PermissionError as error:
        raise EngineForbidden(f"{path}: you may not use the container engine") from error
    except OSError as error:
        raise _unavailable(f"{path}: {error.strerror or error}") from error


def _chunks(body: Body, token: CancellationToken) -> Iterator[bytes]:
    parts = iter(partial(body.read, _CHUNK_BYTES), b"") if hasattr(body, "read") else body
    for chunk in parts:
        token.check()
        yield chunk


def _disconnect(answer: "CancellableStream[Any]") -> None:
    """Close the connection of an answer; the engine ends a build whose client disconnects."""
    # The SDK raises these for an answer that has just ended, and over ssh, where the build goes on.
    with suppress(AttributeError, OSError, DockerException):
        answer.close()


def _finish_step(api: docker.APIClient, container: str, step: Step, kill: Callable[[], None]) -> StepEnd:
    taken = step.result is not None
    stream = api.attach(container, stdout=True, stderr=True, stream=True, demux=True) if taken else None
    try:
        api.start(container)
    except APIError as error:
        raise _step_failure(step.argv[0], error) from error
    within_s = None if step.seconds is None else ceil(step.seconds) + _END_S
    with deadline(step.seconds, kill) as late:
        said = None
        if stream is not None and step.result is not None:
            with deadline(within_s, partial(_disconnect, stream)) as silent:
                said = _take_result(step, step.result, stream, kill)
            within_s = _END_S if silent.is_set() else within_s
        try:
            code = api.wait(container, timeout=within_s)["StatusCode"]
        except requests.RequestException:
            if not late.is_set():
                raise
            code = -1
    if late.is_set():
        raise BuildFailed(f"{step.argv[0]}: took longer than {step.seconds:g} s and was ended")
    if said is None:
        said = _end_of(api.logs(container, stream=True))
    output = said.decode(errors="replace")
    if step.commit is None or code != 0:
        return StepEnd(code, output)
    repository, tag = step.commit.rsplit(":", 1)
    # Otherwise the command of this step would become the command of the image.
    made = api.commit(container, repository, tag, changes=['CMD ["sh"]'])
    return StepEnd(code, output, made["Id"])


def _take_result(
    step: Step,
    result: IO[bytes],
    stream: Iterable[tuple[bytes | None, bytes | None]],
    kill: Callable[[], None],
) -> bytes:
    """Write the standard output of a command to where its result goes; return the end of its standard error.

    Raises:
        BuildFailed: the result is larger than it may be.
    """
    said, size = bytearray(), 0
    for out, error in stream:
        size += len(out or b"")
        if size > step.most_bytes:
            kill()
            raise BuildFailed(f"{step.argv[0]}: its result is larger than {step.most_bytes} bytes")
        result.write(out or b"")
        said += error or b""
        del said[:-MAX_OUTPUT_BYTES]
    return bytes(said)


def _end_of(parts: Iterable[bytes]) -> bytes:
    said = bytearray()
    for part in parts:
        said += part
        del said[:-MAX_OUTPUT_BYTES]
    return bytes(said)


@contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise EngineUnavailable(f"{action}: the container engine says: {_one_line(error)}") from error
    except (DockerException, requests.RequestException) as error:
        raise _unavailable(f"{action}: {_one_line(error)}") from error


def _unavailable(fact: str) -> EngineUnavailable:
    return EngineUnavailable(f"the container engine does not answer ({fact})")


def _registry_words(error: Exception) -> str:
    return "its registry is silent" if isinstance(error, requests.Timeout) else _one_line(error)


def _one_line(error: Exception) -> str:
    text = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return " ".join(str(text).split())


def _message(body: str) -> str:
    """Return the message of an error answer, which is JSON from Docker and not from every other engine."""
    try:
        found = json.loads(body)
    except ValueError:
        return " ".join(body.split())
    return str(found["message"]) if isinstance(found, dict) and "message" in found else body


def _record(line: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise _unavailable("its answer is incomplete") from error
    return found


def _image(row: Mapping[str, Any]) -> Image:
    """Return the image of a row of ``inspect`` or ``list``, which keep labels in different places."""
    labels = row.get("Labels") or (row.get("Config") or {}).get("Labels") or {}
    tags = tuple(tag for tag in row.get("RepoTags") or () if tag != "<none>:<none>")
    return Image(row["Id"], tags, labels, row.get("Size", 0))


@contextmanager
def _step_container(api: docker.APIClient, step: Step, action: str) -> Iterator[str]:
    """Yield the container of a command, which the caller removes."""
    _sweep_steps(api)
    arguments = _step_arguments(api, step)
    _ACTIVE.add(arguments["name"])
    try:
        try:
            container = str(api.create_container(**arguments)["Id"])
        except APIError as error:
            raise _step_failure(action, error) from error
        yield container
    finally:
        _ACTIVE.discard(arguments["name"])


def _step_failure(action: str, error: APIError) -> BuildFailed:
    text = f"{action}: {_one_line(error)}"
    return HostFault(text) if _ENGINE_LACKS.search(text) else failure(text)


def _sweep_steps(api: docker.APIClient) -> None:
    """Remove the containers of commands that have ended and that nobody has removed.

    Their process was killed, or the engine did not answer it.

    They are found by their names, which name the process: a label would be committed with an image.
    """
    for row in api.containers(all=True, filters={"name": f"^/{_STEP_NAME}", "status": ["created", "exited"]}):
        name = row["Names"][0].removeprefix("/")
        pid = name.removeprefix(_STEP_NAME).partition("-")[0]
        if _is_gone(pid) or (pid == str(os.getpid()) and name not in _ACTIVE):
            with suppress(NotFound, APIError):  # another process removes it, too
                api.remove_container(row["Id"], v=True, force=True)


def _is_gone(pid: str) -> bool:
    """Return True if a process of this host has ended."""
    return pid.isdecimal() and not Path("/proc", pid).exists()


def _step_arguments(api: docker.APIClient, step: Step) -> dict[str, Any]:
    mounts = [
        Mount(target, str(source), type="bind", read_only=True) for target, source in step.files.items()
    ]
    mounts += [Mount(target, str(source), type="bind") for target, source in step.writable.items()]
    build = step.user is not None
    host = api.create_host_config(
        network_mode="default" if step.network else "none",
        mounts=mounts,
        # A tmpfs for the mounts, so that their empty mount points are not committed.
        tmpfs=({"/run": "mode=755"} if mounts else {})
        | ({"/tmp": "rw,exec,nosuid,nodev,size=4g,mode=1777"} if build else {}),  # noqa: S108
        read_only=build,
        mem_limit=step.memory_bytes,
        pids_limit=1024,
        cap_drop=None if step.root else ["ALL"],
        security_opt=["no-new-privileges:true"],
        log_config=_log_config(step),
    )
    return {
        "name": f"{_STEP_NAME}{os.getpid()}-{secrets.token_hex(4)}",
        "image": step.image,
        "entrypoint": [],  # that of the image is not used, and a commit keeps none
        "command": list(step.argv),
        "user": _step_user(step),
        "working_dir": "/tmp" if build else None,  # noqa: S108  (in the container)
        "environment": {"HOME": "/tmp"} if build else None,  # noqa: S108
        "host_config": host,
    }


def _added_config(addition: Addition, below: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the image below that the engine would else take from the container."""
    entrypoint = below.get("Entrypoint") or []
    return {
        "Entrypoint": entrypoint,
        "Cmd": below.get("Cmd") or ([] if entrypoint else ["sh"]),  # none of both is that of the container
        "User": below.get("User") or "0:0",
        "Labels": dict(addition.labels),
        "Env": [f"{name}={value}" for name, value in addition.environment.items()],
    }


def _log_config(step: Step) -> LogConfig | None:
    """Return the log that the engine keeps of a command: none if the output is read as it comes."""
    if step.result is not None:
        return LogConfig(type="none")
    if not step.root:
        return LogConfig(type="json-file", config={"max-size": f"{2 * MAX_OUTPUT_BYTES}", "max-file": "2"})
    return None


def _step_user(step: Step) -> str:
    if step.user is not None:
        return "{}:{}".format(*step.user)
    return "0:0" if step.root else "65532:65532"


def _build_params(request: BuildRequest, version: str) -> dict[str, str]:
    return {
        "version": version,
        "t": request.tag,
        "buildargs": json.dumps(dict(request.arguments)),
        "labels": json.dumps(dict(request.labels)),
        "networkmode": "default" if request.network else "none",
        "rm": "1",
        "forcerm": "1",
        "dockerfile": request.dockerfile,
        **({} if request.cache else {"nocache": "1"}),
        **({} if request.memory_bytes is None else {"memory": str(request.memory_bytes)}),
    }


def _buildkit_lines(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    decoder = ProgressDecoder()
    for record in records:
        if record.get("id") == "moby.buildkit.trace":
            yield from _decode(decoder, record["aux"])
        else:
            yield from decoder.flush()
            yield from _plain_lines(record)


def _decode(decoder: ProgressDecoder, aux: str) -> Iterator[str]:
    """Yield the lines of a record; a malformed record must not fail the build."""
    try:
        yield from decoder.lines(aux)
    except ValueError as error:
        yield f"=> {error}"


def _plain_lines(record: Mapping[str, Any]) -> Iterator[str]:
    if "error" in record:
        raise failure(str(record["error"]).strip())
    yield from filter(None, str(record.get("stream", "")).splitlines())
