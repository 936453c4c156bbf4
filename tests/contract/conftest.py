import pytest


@pytest.fixture(scope="session")
def engine() -> str:
    return "unix:///var/run/docker.sock"


@pytest.fixture(scope="session")
def base_image(engine: str) -> str:
    import docker

    client = docker.APIClient(engine, version="auto")
    return str(client.inspect_image("runner-base:bookworm")["Id"])  # type: ignore[no-untyped-call]
