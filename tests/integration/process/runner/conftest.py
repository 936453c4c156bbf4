"""The fixtures of the unit tests of the same packages."""

from tests.unit.runner.conftest import host  # noqa: F401  pytest finds fixtures by their names
