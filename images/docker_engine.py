"""The container engine, through its SDK: the only import of ``docker`` in ``images``.

Three builders, because no single one works everywhere: the ``buildx`` plugin where it is
installed; the engine's own BuildKit, which the SDK does not speak, by a plain ``POST
/build?version=2`` on the SDK's session; the classic builder.  Builds get no network:
everything that they need is in the context.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from socket import AF_UNIX, socket
from typing import IO, Any, Final

import docker
import requests
from docker.constants import DEFAULT_TIMEOUT_SECONDS, DEFAULT_UNIX_SOCKET
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import CancellableStream, Mount

from images import buildx
from images.buildkit_progress import ProgressDecoder
from images.cancellation import CancellationToken
from images.errors import BuildFailed, EngineForbidden, EngineUnavailable
from images.ports import BuildRequest, Image, Step, StepEnd
from images.settings import BuilderKind

_PULL_SILENCE_S: Final = 20
"""A registry that says nothing for so long is not there; while a pull moves it says something."""

_BUILDKIT_API: Final = (1, 39)
"""The first engine API that has ``/build?version=2``."""

_TAR: Final = {"Content-Type": "application/x-tar"}
_CHUNK_BYTES: Final = 1024**2
_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerEngine:
    """A Docker engine, or what speaks its API; satisfies ``images.ports.Engine``."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._version = "auto"  # asked once: every look-up would ask again

    def image(self, reference: str) -> Image | None:
        with self._client(f"inspect {reference}") as api:
            try:
                return _image(api.inspect_image(reference))  # type: ignore[no-untyped-call]
            except ImageNotFound:
                return None

    def images(self, label: str) -> tuple[Image, ...]:
        with self._client("list images") as api:
            return tuple(_image(row) for row in api.images(filters={"label": label}))

    def tag(self, image: str, tag: str) -> None:
        with self._client(f"tag {tag}") as api:
            repository, name = tag.rsplit(":", 1)
            api.tag(image, repository, name)

    def pull(self, reference: str) -> None:
        with self._client(f"pull {reference}", _PULL_SILENCE_S) as api:
            try:
                for record in api.pull(reference, stream=True, decode=True):
                    if "error" in record:
                        raise BuildFailed(f"pull {reference}: {record['error']}")
            except (APIError, requests.RequestException) as error:
                raise BuildFailed(f"pull {reference}: {_one_line(error)}") from error

    def load_root(self, archive: IO[bytes], tag: str) -> str:
        repository, name = tag.rsplit(":", 1)
        params = {"fromSrc": "-", "repo": repository, "tag": name, "changes": f"ENV PATH={_DEFAULT_PATH}"}
        for record in self._post("images/create", params, archive, CancellationToken()):
            if "error" in record:
                raise BuildFailed(f"import {tag}: {record['error']}")
        found = self.image(tag)
        if found is None:
            raise BuildFailed(f"import {tag}: the engine took it and does not have it")
        return found.id

    def step(self, step: Step) -> StepEnd:
        with self._client("run a command") as api:
            try:
                container = api.create_container(**_step_arguments(api, step))["Id"]
            except APIError as error:
                raise BuildFailed(f"{step.argv[0]}: {_one_line(error)}") from error
            try:
                return _finish_step(api, container, step)
            finally:
                api.remove_container(container, v=True, force=True)

    def builders(self) -> Iterator[BuilderKind]:
        if buildx.works():
            yield "buildx"
        with self._client("version") as api:
            parts = [part["Name"] for part in api.version().get("Components", [])]
            version = tuple(int(part) for part in api.api_version.split("."))
        if (
            "Engine" in parts and version >= _BUILDKIT_API
        ):  # Podman has other parts, and ignores the parameter
            yield "engine"
        yield "classic"

    def platform(self) -> str:
        with self._client("version") as api:
            version = api.version()
        return f"{version['Os']}/{version['Arch']}"

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], interest: CancellationToken
    ) -> Iterator[str]:
        match kind:
            case "buildx":
                yield from buildx.build(request, context, self._url, interest)
            case "engine":
                params = _build_params(request, "2")
                yield from _buildkit_lines(self._post("build", params, context, interest))
            case "classic":
                params = _build_params(request, "1")
                yield from _classic_lines(self._post("build", params, context, interest))

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
        self, path: str, params: Mapping[str, str], body: IO[bytes], interest: CancellationToken
    ) -> Iterator[dict[str, Any]]:
        """Send a tar, yield the answer's records; no time limit, for a command may print nothing for long."""
        with self._client(path) as api:
            url = f"{api.base_url}/v{api.api_version}/{path}"
            chunks = _chunks(body, interest)
            with api.post(url, data=chunks, params=params, headers=_TAR, stream=True, timeout=None) as answer:
                if not answer.ok:
                    raise BuildFailed(f"{path}: {_message(answer.text)}")
                lines = answer.iter_lines(chunk_size=None)
                with interest.ending(partial(_hang_up, CancellableStream(lines, answer))):
                    yield from map(_record, filter(None, lines))

    @contextmanager
    def _client(self, doing: str, timeout_s: int = DEFAULT_TIMEOUT_SECONDS) -> Iterator[docker.APIClient]:
        """Connect for one request: the SDK's clients are not safe to share, and a build is not in a hurry."""
        with _translated("connect"):
            api = self._connected(timeout_s)
        with closing(api), _translated(doing):
            yield api

    def _connected(self, timeout_s: int) -> docker.APIClient:
        url = self._url or os.environ.get("DOCKER_HOST") or DEFAULT_UNIX_SOCKET
        if "unix://" in url:
            _knock("/" + url.split("://")[1].lstrip("/"))
        if self._url is not None:
            api = docker.APIClient(self._url, self._version, timeout_s)
        else:
            api = docker.from_env(version=self._version, timeout=timeout_s).api  # with its TLS settings
        self._version = api.api_version
        return api


def _knock(path: str) -> None:
    """Find out that nobody listens, with a better word for it; the SDK would also leave the socket open."""
    try:
        with socket(AF_UNIX) as door:
            door.settimeout(DEFAULT_TIMEOUT_SECONDS)
            door.connect(path)
    except PermissionError as error:
        raise EngineForbidden(f"{path}: you may not use the container engine") from error
    except OSError as error:
        raise _silent(f"{path}: {error.strerror or error}") from error


def _chunks(body: IO[bytes], interest: CancellationToken) -> Iterator[bytes]:
    while chunk := body.read(_CHUNK_BYTES):
        interest.check()
        yield chunk


def _hang_up(answer: "CancellableStream[bytes]") -> None:
    """Close the connection under an answer that is being read: the engine ends a build with its client."""
    # The SDK's errors for one that ends just now, and for ssh, where a build goes on to its end.
    with suppress(AttributeError, OSError, DockerException):
        answer.close()


def _finish_step(api: docker.APIClient, container: str, step: Step) -> StepEnd:
    try:
        api.start(container)
    except APIError as error:
        raise BuildFailed(f"{step.argv[0]}: {_one_line(error)}") from error
    code = api.wait(container, timeout=None)["StatusCode"]
    output = api.logs(container).decode(errors="replace")
    if step.commit is None or code != 0:
        return StepEnd(code, output)
    repository, tag = step.commit.rsplit(":", 1)
    # Else the command of this step would stay behind as the image's own.
    made = api.commit(container, repository, tag, changes=['CMD ["sh"]'])
    return StepEnd(code, output, made["Id"])


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise EngineUnavailable(f"{doing}: the container engine says: {_one_line(error)}") from error
    except (DockerException, requests.RequestException) as error:
        raise _silent(f"{doing}: {_one_line(error)}") from error


def _silent(fact: str) -> EngineUnavailable:
    return EngineUnavailable(f"the container engine does not answer ({fact})")


def _one_line(error: Exception) -> str:
    text = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return " ".join(str(text).split())


def _message(body: str) -> str:
    """Return the text of an error answer, which is JSON from Docker and not always from others."""
    try:
        found = json.loads(body)
    except ValueError:
        return " ".join(body.split())
    return str(found["message"]) if isinstance(found, dict) and "message" in found else body


def _record(line: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise _silent("its answer breaks off in the middle") from error
    return found


def _image(row: Mapping[str, Any]) -> Image:
    """Return what ``inspect`` or ``list`` says; labels are in two places, no tag is a tag."""
    labels = row.get("Labels") or (row.get("Config") or {}).get("Labels") or {}
    tags = tuple(tag for tag in row.get("RepoTags") or () if tag != "<none>:<none>")
    return Image(row["Id"], tags, labels, row.get("Size", 0))


def _step_arguments(api: docker.APIClient, step: Step) -> dict[str, Any]:
    mounts = [
        Mount(target, str(source), type="bind", read_only=True) for target, source in step.files.items()
    ]
    host = api.create_host_config(
        network_mode="default" if step.network else "none",
        mounts=mounts,
        # The place for mounts, so that not even their empty mount points are committed.
        tmpfs={"/run": "mode=755"},
        cap_drop=None if step.root else ["ALL"],
        security_opt=["no-new-privileges:true"],
    )
    return {
        "image": step.image,
        "entrypoint": [],  # the image's own is not used, and none is left behind by a commit
        "command": list(step.argv),
        "user": "0:0" if step.root else "65532:65532",
        "host_config": host,
    }


def _build_params(request: BuildRequest, version: str) -> dict[str, str]:
    return {
        "version": version,
        "t": request.tag,
        "buildargs": json.dumps(dict(request.arguments)),
        "labels": json.dumps(dict(request.labels)),
        "networkmode": "none",
        "rm": "1",
        "forcerm": "1",
    }


def _buildkit_lines(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    trace = ProgressDecoder()
    for record in records:
        if record.get("id") == "moby.buildkit.trace":
            yield from _traced(trace, record["aux"])
        else:
            yield from trace.rest()
            yield from _plain_lines(record)


def _traced(trace: ProgressDecoder, aux: str) -> Iterator[str]:
    """Yield a record's lines; one that is not understood must not fail a build that goes well."""
    try:
        yield from trace.lines(aux)
    except ValueError as error:
        yield f"=> {error}"


def _classic_lines(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        yield from _plain_lines(record)


def _plain_lines(record: Mapping[str, Any]) -> Iterator[str]:
    if "error" in record:
        raise BuildFailed(str(record["error"]).strip())
    yield from filter(None, str(record.get("stream", "")).splitlines())
