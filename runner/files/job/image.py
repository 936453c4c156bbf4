"""The image of a job: one that the operator offers, or one with packages of the job's own."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Final

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from jobs import contract
from runner.base.textfile import quoted, shown
from runner.core.ports.images import PullPolicy
from runner.files.field_checks import check_host_path, check_job_name, check_pattern, check_text
from runner.files.types import HostPath
from runner.files.validation import error_below

MAX_REQUIREMENTS: Final = 1000
"""Entries of a list of requirements; a file may have as many lines as fit into it."""

MAX_REFERENCE: Final = 500
"""Letters of the reference of an image."""

MAX_SYSTEM: Final = 100
"""Debian packages of one job, without those that they need."""

_debian: Final = check_pattern(
    r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+~:-]+)?", "a Debian package such as libsndfile1"
)
_REFERENCE: Final = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?[a-z0-9]+(([._-]+|/)[a-z0-9]+)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_PYTHON: Final = re.compile(r"3\.[0-9]{1,2}")


def is_reference(value: str) -> bool:
    """Return True if the name of an image is that of an engine or a registry, not one of the operator."""
    return any(mark in value for mark in "/:@")


def is_offered(reference: str, offered: Iterable[str]) -> bool:
    """Return True if the reference of an image is one of an operator's, or fits one of their patterns."""
    return any(fnmatchcase(reference, each) for each in offered)


def check_image(value: str) -> str:
    """Return the name of an image that the operator offers, or the reference of any image."""
    if not is_reference(value):
        return check_job_name(value)
    if len(value) > MAX_REFERENCE or not _REFERENCE.fullmatch(value):
        fact = "must be a name, or a reference such as nvcr.io/nvidia/pytorch:25.08-py3"
        raise ValueError(f"{fact}, not {quoted(value)}")
    return value


def check_requirements(value: object) -> str | tuple[str, ...]:
    """Return the path of a file with requirements, or requirements."""
    if isinstance(value, str):
        return check_host_path(value)
    if not isinstance(value, list | tuple):
        fact = f"must be a file or a list such as [tqdm, transformers], not {shown(value)}"
        raise ValueError(fact)
    if not value or len(value) > MAX_REQUIREMENTS:
        raise ValueError(f"must have from 1 to {MAX_REQUIREMENTS} entries, not {len(value)}")
    for number, each in enumerate(value):
        if not isinstance(each, str) or not each.strip():
            raise error_below((number,), f"must be a package such as tqdm>=4, not {shown(each)}")
        check_text(each)
        if "\n" in each or "\r" in each:
            raise error_below((number,), "must be one line")
    return tuple(value)


def check_python(value: object) -> str:
    """Return a version of Python."""
    if isinstance(value, str) and _PYTHON.fullmatch(value):
        return value
    hint = "; put it in quotes" if isinstance(value, float) else ""
    raise ValueError(f'must be a version such as "3.12", not {shown(value)}{hint}')


def _as_written(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)


ImageName = Annotated[str, AfterValidator(check_image)]
RequirementsChoice = Annotated[
    str | tuple[str, ...],
    PlainValidator(check_requirements),
    PlainSerializer(_as_written, return_type=str | list[str], when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {"type": "string"},
                    "minItems": 1,
                    "maxItems": MAX_REQUIREMENTS,
                },
            ]
        }
    ),
]
SystemPackages = Annotated[
    tuple[Annotated[str, AfterValidator(_debian)], ...], Field(min_length=1, max_length=MAX_SYSTEM)
]
PythonVersion = Annotated[
    str,
    PlainValidator(check_python),
    WithJsonSchema({"type": "string", "pattern": f"^{_PYTHON.pattern}$"}),
]


class ImageChoice(contract.Spec):
    """Image of the job, and the packages that it adds."""

    name: ImageName = Field(
        "auto",
        description="auto, an image that the operator offers, or any in your own daemon, as python:3.12.",
    )
    requirements: RequirementsChoice | None = Field(
        None, description="Python packages: a requirements.txt, pyproject.toml or pylock.toml, or a list."
    )
    python: PythonVersion | None = Field(
        None,
        description='The Python of the image, such as "3.12"; the operator must have one with it.',
    )
    system: SystemPackages | None = Field(
        None, description="Debian packages, such as [libsndfile1], from the list of the operator."
    )
    dockerfile: HostPath | None = Field(
        None, description="A Dockerfile in the code of the job, where the operator allows it."
    )
    base: ImageName | None = Field(
        None,
        description="The image that gets the packages, named as in name; null: that of the accelerator.",
    )
    pull: PullPolicy = Field(
        "missing",
        description="When any image is pulled from its registry: if it is missing, always or never.",
        exclude_if=lambda value: value == "missing",
    )

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "ImageChoice":
        if self.name != "auto" and (self.has_packages or self.dockerfile is not None):
            fact = "an image with packages of its own has no name; write base"
            raise error_below(("name",), f"{fact}: {quoted(self.name)}")
        if self.pull != "missing" and not is_reference(self.offered):
            fact = f"{quoted(self.offered)} is never pulled; it goes with an image such as python:3.12"
            raise error_below(("pull",), fact)
        if self.dockerfile is not None and self.system is not None:
            raise error_below(("system",), "goes not with a dockerfile; install them there, with apt-get")
        return self

    @property
    def has_packages(self) -> bool:
        """Return True if the job asks for more than an image that the operator offers."""
        return any(each is not None for each in (self.requirements, self.system, self.python))

    @property
    def offered(self) -> str:
        """The name of the image, or of the image below the packages; ``auto``: that of the accelerator."""
        return self.base or self.name
