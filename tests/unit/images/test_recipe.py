"""A Dockerfile is cut where the environment ends."""

import pytest

from images.recipe import last_stage, without_last_stage

WHOLE = """# a comment that says FROM nothing
ARG BASE=debian
ARG ENVIRONMENT=environment
FROM ${BASE} AS environment
RUN echo FROM here
FROM ${ENVIRONMENT}
COPY jobs /opt/jobs
"""


def test_the_last_stage_stands_alone_with_the_global_arguments() -> None:
    assert last_stage(WHOLE) == (
        "ARG BASE=debian\nARG ENVIRONMENT=environment\nFROM ${ENVIRONMENT}\nCOPY jobs /opt/jobs\n"
    )


def test_the_environment_does_not_see_the_last_stage() -> None:
    assert without_last_stage(WHOLE).endswith("RUN echo FROM here\n")
    assert without_last_stage(WHOLE) == without_last_stage(WHOLE.replace("/opt/jobs", "/elsewhere"))


def test_a_dockerfile_without_a_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="no FROM line"):
        last_stage("RUN true\n")
