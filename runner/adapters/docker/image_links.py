"""Finds the links of an image, in a container that is never started and has no mounts."""

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from docker import APIClient
from docker.errors import NotFound

from runner.adapters.docker.connection import EngineConnection
from runner.base.errors import Unavailable

_LINK: Final = 1 << 27
"""Bit of a link in the modes of the engine, which are those of Go."""

MOST_KNOWN: Final = 4096
"""Places of images that are remembered."""


@dataclass(slots=True)
class ImageLinks:
    """The links of images, which never change, as far as somebody has asked for them."""

    connection: EngineConnection
    _known: dict[tuple[str, PurePosixPath], PurePosixPath | None] = field(default_factory=dict)

    def of(
        self, image: str, places: Iterable[PurePosixPath], name: str
    ) -> Mapping[PurePosixPath, PurePosixPath]:
        """Return those places, and directories above them, that are links, with where these lead to.

        ``name`` is that of a container which may be made.
        """
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        wanted = {each for place in places for each in (place, *place.parents) if each.name}
        missing = [each for each in sorted(wanted) if (image, each) not in self._known]
        if missing:
            with self._container(image, f"{name}-links") as (client, container):
                found = {(image, each): _link(client, container, each) for each in missing}
            self._known.update(found)
        links = {each: self._known[image, each] for each in sorted(wanted)}
        return {place: target for place, target in links.items() if target is not None}

    @contextmanager
    def _container(self, image: str, name: str) -> Iterator[tuple[APIClient, str]]:
        client = self.connection.client()
        with suppress(NotFound):  # of a daemon that was killed
            client.remove_container(name, v=True, force=True)
        host = {"NetworkMode": "none"}
        config = {"Image": image, "Entrypoint": ["-"], "Cmd": [], "HostConfig": host}
        made: str = client.create_container_from_config(config, name)["Id"]  # type: ignore[no-untyped-call]
        try:
            yield client, made
        finally:
            client.remove_container(made, v=True, force=True)


def _link(client: APIClient, container: str, place: PurePosixPath) -> PurePosixPath | None:
    """Return the target of a link of a container; None if a path is no link, or not there."""
    url = f"{client.base_url}/v{client.api_version}/containers/{container}/archive"
    answer = client.head(url, params={"path": str(place)}, timeout=client.timeout)
    if 400 <= answer.status_code < 500:
        return None
    if not answer.ok:
        raise Unavailable(f"{place}: the container engine does not say whether the image has a link there")
    found = json.loads(b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
    return PurePosixPath(found["linkTarget"]) if found["mode"] & _LINK else None
