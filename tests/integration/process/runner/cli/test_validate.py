"""A job file is checked with the help of a daemon that answers, and without one."""

import json

from tests.fakes.daemon.service import Service, service


def large(daemon: Service) -> str:
    program = {"kind": "program", "command": ["/bin/true"]}
    return str(daemon.file("large", workload=program, resources={"cpus": 1, "memory": "2TB"}))


def test_a_daemon_that_answers_says_what_the_machine_can_never_run() -> None:
    with service(executor="process") as daemon:
        file = large(daemon)
        assert daemon.runner("validate", file) == f"{file}: ok\n"
        assert daemon.pid() is None
        daemon.start()
        said = daemon.runner("validate", file, code=2)
        assert "resources.memory: asks for 1.8 TiB; there are 64 GiB" in said
        [problem] = json.loads(daemon.runner("validate", "--json", file, code=2))["problems"]
        assert problem["field"] == "resources.memory"
        assert problem["fact"] == "asks for 1.8 TiB; there are 64 GiB"
        assert daemon.client.jobs(everything=True) == []
