"""The port to what users have written: it is read by a process of theirs, and never by the daemon."""

from pathlib import Path
from typing import Protocol

from runner.base.textfile import Position
from runner.base.yaml import PathPart
from runner.core.ports.users import Archive, Owner, User, Users
from runner.files.required import Collected
from runner.files.submission import Submission
from runner.files.written import WrittenJobs


class UserTexts(Users, Protocol):
    """Reads what users have written with their rights, at their expense.

    Each method raises UsageError if a text takes too much time or memory, and Unavailable if it cannot be
    read now.
    """

    def archive_as_owner(self, owner: Owner, directory: Path, name: str) -> Archive:
        """Return the files at a name below a directory as a tar archive, read with the rights of an owner.

        The caller closes it.  May raise OSError.
        """

    def read_jobs(self, who: User, submission: Submission) -> WrittenJobs:
        """Return the jobs of a submission.

        Raises:
            FileError: the file is wrong; all its errors at once.
            UsageError: an option of the submission is wrong.
            Refused: its jobs are too large together.
        """

    def find_place(self, who: User, text: bytes, number: int, path: tuple[PathPart, ...]) -> Position | None:
        """Return the position of a job's value in the file; ``number`` counts those of a matrix, from 0."""

    def has_schedule(self, who: User, text: bytes) -> bool:
        """Return True if a job file has a schedule, valid or not."""

    def read_requirements(self, who: User, base: Path, asked: str | tuple[str, ...]) -> Collected:
        """Return the requirements of a job; ``base`` is the directory of the job file.

        Raises:
            FileError: a file of them cannot be read; ``MissingFile``: the first one.
        """

    def check_dockerfile(
        self, who: User, base: Path, path: str, offered: frozenset[str] | None
    ) -> tuple[str, ...]:
        """Return the warnings about the Dockerfile of a job.

        It may begin with the images that are offered, None: with any.

        Raises:
            FileError: at the lines that say what it may not.
        """

    def check_script(self, who: User, base: Path, path: str) -> tuple[str, ...]:
        """Return the losses of a shell script in the code of a job; nothing of a file that cannot be read."""

    def find_links_out(self, who: User, directory: Path) -> tuple[tuple[str, str], ...]:
        """Return the links that lead out of a directory, by their paths below it, with what they say."""
