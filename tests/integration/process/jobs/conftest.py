"""The fixtures of the unit tests of the same packages."""

from tests.unit.jobs.conftest import _as_before, before_step, corpus, job  # noqa: F401  found by name
