"""The environment variables that the daemon keeps; all others are removed before its libraries are loaded.

A library may take an instruction from a variable that nobody meant for this daemon: ``FORWARDED_ALLOW_IPS``
made uvicorn take the identity of a caller from a header of the request, ``SSLKEYLOGFILE`` writes keys of TLS
into a file, ``PROMETHEUS_MULTIPROC_DIR`` writes metrics into a directory.  What is kept is documented in
``docs/operate/install.md``.
"""

from collections.abc import MutableMapping
from typing import Final

KEPT: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "NO_COLOR", "TZ", "TMPDIR", "LANG", "LANGUAGE"),
        *("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
        *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "SLURM_CONF"),
        *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
"""The user's paths and language, the engine, and the way out of this network."""

KEPT_PREFIXES: Final = ("LC_", "PIP_", "RUNNER_")


def remove_unknown(environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """Remove every variable that the daemon does not need; return the names of those removed."""
    unknown = tuple(name for name in environ if name not in KEPT and not name.startswith(KEPT_PREFIXES))
    for name in unknown:
        del environ[name]
    return unknown
