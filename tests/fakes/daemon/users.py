"""The users of the host, whose texts are read in this process: a unit test starts no other."""

from pathlib import Path

from runner.adapters.host.users import HostUsers
from runner.adapters.host.worker import UserWork
from runner.base.textfile import Position
from runner.core.ports.users import User
from runner.files.required import Collected
from runner.files.submission import Submission
from runner.files.written import WrittenJobs


class DirectUsers(HostUsers):
    """Reads texts as the user of this process."""

    def read_jobs(self, who: User, submission: Submission) -> WrittenJobs:
        del who
        said = submission
        return UserWork().read_jobs(said.path, said.text, said.name, said.shown, said.instead)

    def find_place(self, who: User, text: bytes, number: int, path: tuple[str | int, ...]) -> Position | None:
        del who
        return UserWork().find_place(text, number, path)

    def has_schedule(self, who: User, text: bytes) -> bool:
        del who
        return UserWork().has_schedule(text)

    def read_requirements(self, who: User, base: Path, asked: str | tuple[str, ...]) -> Collected:
        del who
        return UserWork().read_requirements(base, asked)

    def check_script(self, who: User, base: Path, path: str) -> tuple[str, ...]:
        assert who.uid >= 0
        return UserWork().check_script(base, path)

    def find_links_out(self, who: User, directory: Path) -> tuple[tuple[str, str], ...]:
        assert who.uid >= 0
        return UserWork().find_links_out(directory)

    def check_dockerfile(
        self, who: User, base: Path, path: str, offered: frozenset[str] | None
    ) -> tuple[str, ...]:
        del who
        return UserWork().check_dockerfile(base, path, offered)
