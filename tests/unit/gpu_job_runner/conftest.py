"""The fixtures of the unit tests of the command line."""

from tests.unit.runner.cli.conftest import api, job_file  # noqa: F401  pytest finds fixtures by name
