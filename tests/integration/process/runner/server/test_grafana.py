"""The board for Grafana: a real Prometheus that collects from a daemon knows each of its queries."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.fakes.daemon.ports import free_port
from tests.fakes.daemon.service import until
from tests.fakes.gpu.hosts import h100s
from tests.fakes.gpu.site import Site, site
from tests.fakes.patience import patience

ROOT: Final = Path(__file__).parents[5]
BOARD: Final = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
VARIABLES: Final = {"$instance": ".*", "$__rate_interval": "1m"}
CONFIG: Final = """\
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - {job_name: runner, static_configs: [{targets: ["TARGET"]}]}
"""


def queries() -> list[str]:
    """Return the queries of all panels, with the values that Grafana would put in."""
    found = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        found = [query.replace(name, value) for query in found]
    return found


@pytest.fixture(scope="module")
def program() -> str:
    found = shutil.which("prometheus", path=f"{os.environ['PATH']}:{ROOT / '.make/tools/usr/bin'}")
    if found is None:
        message = "there is no prometheus; scripts/test-tools provides it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    metrics = {"listen": f"127.0.0.1:{free_port()}", "per_user": True}
    with site(tmp_path_factory.mktemp("site"), h100s(2), metrics=metrics) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(program: str, here: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place, address = tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{free_port()}"
    metrics = cast("dict[str, str]", here.daemon.settings["metrics"])
    (place / "config.yml").write_text(CONFIG.replace("TARGET", metrics["listen"]))
    command = [program, f"--config.file={place}/config.yml", f"--storage.tsdb.path={place}/data"]
    with (place / "log").open("wb") as log:
        served = [*command, f"--web.listen-address={address}"]
        with subprocess.Popen(served, stdout=log, stderr=log, cwd=place) as process:
            yield address
            process.terminate()


def ask(address: str, query: str) -> list[Any] | None:
    """Return the series of a query, None if Prometheus does not answer yet."""
    try:
        with urlopen(
            f"http://{address}/api/v1/query?{urlencode({'query': query})}", timeout=patience()
        ) as answer:
            said = json.load(answer)
    except URLError:
        return None
    assert said["status"] == "success", (query, said)
    return list(said["data"]["result"])


def test_every_query_of_the_board_gives_a_series(here: Site, prometheus: str) -> None:
    busy = here.sleeper("busy", 1)
    here.daemon.reaches(busy, "running")
    until(lambda: ask(prometheus, "runner_info"), "the daemon is collected")
    done = here.daemon.submit(here.daemon.file("done", workload={"kind": "program", "command": ["true"]}))
    waiting = here.sleeper("waiting", 2)
    here.daemon.ends(done)
    for query in queries():
        until(lambda query=query: ask(prometheus, query), f"there is a series of {query}")  # type: ignore[misc]
    user = here.daemon.job(busy)["owner"]
    [devices] = ask(prometheus, f'runner_user_devices{{user="{user}"}}') or []
    assert devices["value"][1] == "1"
    here.daemon.runner("cancel", busy, waiting)


def test_the_board_names_only_metrics_of_the_reference() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    names = set(re.findall(r"\brunner_[a-z_]+", " ".join(queries())))
    assert names
    assert all(f"| `{name}` |" in page for name in names)
    assert {panel["id"] for panel in BOARD["panels"]} == set(range(1, len(BOARD["panels"]) + 1))
