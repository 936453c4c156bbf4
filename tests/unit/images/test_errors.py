"""Words of engines and registries: another try may help, or it does not."""

import pytest

from images.errors import BuildFailed, HostFault, look_up_failure, pull_failure

IMAGE = "reg.lab.org:5000/denied/not-found:unauthorized"
"""An image whose name has the words of refusals."""


@pytest.mark.parametrize(
    "words",
    [
        f'Get "https://{IMAGE}/v2/": dial tcp 10.0.0.1:5000: connect: connection refused',
        "Head https://reg.lab.org:5000/v2/denied/not-found/manifests/1: context deadline exceeded",
        f'failed to resolve reference "{IMAGE}": failed to do request: EOF',
        "write /var/lib/docker/tmp/GetImageBlob1: permission denied",
        "invalid character '<' looking for beginning of value",
        "dial tcp: lookup proxy.lab.org on 10.0.0.2:53: no such host",
        "dial tcp: lookup reg.lab.org.example on 10.0.0.2:53: no such host",
        "dial tcp: lookup reg.lab.org on 10.0.0.2:53: server misbehaving",
        "toomanyrequests: You have reached your pull rate limit",
        'Get "https://reg.lab.org:5000/v2/": Proxy Authentication Required',
        "failed to extract layer sha256:12: failed to get reader from content store: blob sha256:3 not found",
        "failed to prepare extraction snapshot: parent snapshot sha256:12 does not exist: not found",
        "failed to register layer: unexpected EOF",
    ],
)
def test_what_may_be_another_time_is_the_hosts_fault_whatever_the_image_is_named(words: str) -> None:
    assert type(pull_failure(IMAGE, words)) is HostFault
    assert type(look_up_failure(IMAGE, words)) is HostFault


@pytest.mark.parametrize(
    "words",
    [
        f"manifest for {IMAGE} not found: manifest unknown: manifest unknown",
        'image operating system "windows" cannot be used on this platform',
        "image with reference was found but does not provide the specified platform (linux/amd64)",
        "Docker Image Format v1 and Docker Image manifest version 2, schema 1 support is disabled by default",
        "repository name must be lowercase",
        f'failed to resolve reference "{IMAGE}": {IMAGE}: not found',
        "repository name not known to registry: name unknown",
        "denied: requested access to the resource is denied",
        "unexpected status from HEAD request to https://reg.lab.org/v2/x/manifests/1: 403 Forbidden",
        "no matching manifest for linux/arm64/v8 in the manifest list entries",
        "pull access denied, repository does not exist or may require authorization",
    ],
)
def test_what_a_registry_answers_plainly_stays_so(words: str) -> None:
    assert type(pull_failure(IMAGE, words)) is BuildFailed
    assert type(look_up_failure(IMAGE, words)) is BuildFailed


def test_a_registry_that_was_there_is_not_called_mistyped() -> None:
    words = 'Get "https://reg.lab.org:5000/v2/": dial tcp: lookup reg.lab.org on 10.0.0.2:53: no such host'
    assert type(look_up_failure(IMAGE, words)) is BuildFailed
    assert type(pull_failure(IMAGE, words)) is HostFault
    hub = "dial tcp: lookup registry-1.docker.io on 10.0.0.2:53: no such host"
    assert type(look_up_failure("pytorch/pytorch:2", hub)) is HostFault


def test_an_image_that_is_named_after_a_store_is_no_fault_of_the_store() -> None:
    assert type(pull_failure("lab/snapshot:1", "manifest for lab/snapshot:1 not found")) is BuildFailed
