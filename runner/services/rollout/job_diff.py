"""Differences between two jobs, two revisions of a job, or a job and a file: fields, packages, code.

The fields are those that ``runner apply`` compares, with the same classes.  The code is compared file by
file; the texts of those that differ are in the answer, within limits, and the client makes a diff of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.base.errors import Refused, UsageError
from runner.core.policy.change_class import change_rows
from runner.core.ports.code import CodeEntry
from runner.core.ports.store import JobRow
from runner.files.revision import Revision, parse_revision
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.jobs import JobService
from runner.services.rollout.diff import compare_revisions, in_place_of
from runner.services.submission.code_changes import CodeChange, code_changes, code_entries, has_same_code
from runner.services.submission.resolve import keep_code

MAX_TEXT_BYTES: Final = 512 * 1024
"""A longer file is named, and not compared line by line."""
MAX_TEXTS_BYTES: Final = 8 * 1024**2
"""All texts of an answer together."""
MAX_FILES: Final = 10_000

COLUMNS: Final = ("field", "before", "after", "class", "why")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two things that are compared."""

    name: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class JobDiff:
    """Compares jobs, revisions and files for a caller."""

    service: JobService

    def sides(
        self, caller: Caller, first: str, second: str | None, file: Submission | None
    ) -> tuple[Side, Side]:
        """Return what is compared: a job with another one, with a file, or with its own file as it is now.

        A reference may be ``JOB@N`` for a revision.

        Raises:
            FileError: the file is wrong.
            Refused: one of the jobs belongs to another user, or has no such revision.
        """
        before, row = self._side(caller, first)
        if second is not None:
            return before, self._side(caller, second)[0]
        return before, self._file_side(caller, before.revision, row, file)

    def json(self, before: Side, after: Side) -> dict[str, Any]:
        """Return the differences as JSON values."""
        snapshots = self.service.code
        same = has_same_code(snapshots, before.revision, after.revision)
        found = compare_revisions(before.revision, after.revision, same_code=same)
        old, new = (code_entries(snapshots, side.revision) for side in (before, after))
        files = () if same or old is None or new is None else code_changes(old, new)
        return {
            "before": before.name,
            "after": after.name,
            "class": str(found.kind),
            "changes": [dict(zip(COLUMNS, row, strict=True)) for row in change_rows(found)],
            "code": list(self._files(before.revision.uid, after.revision.uid, files)),
            "code_unknown": [
                side.name
                for side, entries in ((before, old), (after, new))
                if entries is None and not same and side.revision.program_code is not None
            ],
        }

    def _side(self, caller: Caller, reference: str) -> tuple[Side, JobRow]:
        name, _, number = reference.partition("@")
        row = self.service.queries.readable(caller, name)
        if not number:
            return Side(f"{row.name}@{row.job.revision}", parse_revision(row.revision)), row
        known = [str(each.number) for each in self.service.store.revisions(row.job.id)]
        text = self.service.store.revision(row.job.id, int(number)) if number in known else None
        if text is None:
            raise Refused(f"job {row.job.id}: has no revision {number[:20]}; it has {', '.join(known)}")
        return Side(f"{row.name}@{number}", parse_revision(text.whole)), row

    def _file_side(self, caller: Caller, before: Revision, row: JobRow, file: Submission | None) -> Side:
        """Return a file as it would be submitted now; without one the job's own, or its code as it is."""
        submission = file or self._own_file(caller, before)
        if submission is None:
            return Side(f"{before.code_directory()} (now)", self._with_present_code(caller, before))
        after = self.service.submission.resolve(caller, submission, lambda _: parse_revision(row.revision))
        after = in_place_of(before, after)
        if file is None:
            after = after.model_copy(update={"job": after.job.model_copy(update={"name": before.job.name})})
        return Side(f"{submission.shown or submission.path} (now)", after)

    def _own_file(self, caller: Caller, before: Revision) -> Submission | None:
        """Return the job file that a job was submitted with as it is now, None if it is not there."""
        if before.sweep is not None:
            return None
        try:
            text = self.service.users.read_as_user(self.service.user(caller), Path(before.path))
        except UsageError:
            return None
        return Submission(before.path, text)

    def _with_present_code(self, caller: Caller, before: Revision) -> Revision:
        taken = keep_code(self.service.code, self.service.user(caller), before)
        return before.model_copy(update={"code": taken})

    # --- the files

    def _files(self, old_uid: int, new_uid: int, changes: Sequence[CodeChange]) -> Iterator[dict[str, Any]]:
        room = MAX_TEXTS_BYTES
        for change in changes[:MAX_FILES]:
            texts = [
                self._text(uid, entry, room)
                for uid, entry in ((old_uid, change.before), (new_uid, change.after))
            ]
            room -= sum(len(text or "") for text in texts)
            whole = all(text is not None for text in texts)
            yield {
                "path": change.path,
                "before": _described(change.before),
                "after": _described(change.after),
                "texts": texts if whole else None,
            }

    def _text(self, uid: int, entry: CodeEntry | None, room: int) -> str | None:
        """Return the text of an entry, empty if there is no entry; None if it is no text, or too long."""
        if entry is None or entry.kind == "directory":
            return ""
        if entry.kind == "link":
            return f"link to {entry.target}\n"
        if self.service.code is None or entry.size > min(MAX_TEXT_BYTES, room):
            return None
        content = self.service.code.read(uid, entry.digest, MAX_TEXT_BYTES)
        try:
            return None if b"\0" in content else content.decode()
        except UnicodeDecodeError:
            return None


def _described(entry: CodeEntry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {
        "kind": entry.kind,
        "size": entry.size,
        "digest": entry.digest or None,
        "executable": entry.executable,
    }
