"""Downloads one file over HTTP into another one, as a program of its own.

An address comes from whoever runs the index, which may be a user: its server may answer a byte a minute, for
ever.  So whoever wants the file starts this with the rights of a user, and ends it when it takes too long.
The Python may be that of the system, 3.8 or newer.
"""

import netrc
import os
import ssl
import sys
from base64 import b64encode
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

_BLOCK: Final = 1024**2


def fetch(url: str, target: Path, most_bytes: int) -> None:
    """Write what is at an address into a file, up to the block after so many bytes."""
    trust = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
    request = Request(url, headers=_credentials(url))  # noqa: S310  (the caller admits http and https)
    with urlopen(request, timeout=60, context=trust) as answer, target.open("wb") as file:  # noqa: S310
        size = 0
        while size <= most_bytes and (block := answer.read(_BLOCK)):
            size += file.write(block)


def _credentials(url: str) -> "dict[str, str]":
    host, file = urlsplit(url).hostname, os.environ.get("NETRC")
    found = netrc.netrc(file).authenticators(host) if file and host else None
    if found is None:
        return {}
    return {"Authorization": "Basic " + b64encode(f"{found[0]}:{found[2]}".encode()).decode()}


if __name__ == "__main__":
    try:
        fetch(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    except Exception as error:  # noqa: BLE001  (the server may answer anything)
        sys.exit(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
