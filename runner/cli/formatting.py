"""Jobs as text: words, ages, cells and lines, without third-party libraries.

Times are ISO-8601 text and become ages; the module never reads the clock.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from runner.base.readable import readable_duration, readable_size
from runner.client.account_text import time_text, used_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeGuard

    from runner.client.types import AttemptResponse, JobDetail, JobSummary, ProgressResponse

OUTCOME_CODES: Final = {"succeeded": 0, "failed": 10, "cancelled": 11}
HELD_CODE: Final = 12
PACE_SAMPLES: Final = 20
MOST_LEFT_OUT: Final = 5
_COUNTS: Final = re.compile(r" \([0-9]+ tries in [0-9a-z.]+\)|[0-9]+(?:\.[0-9]+)?(?:[smhd][0-9]*)*")


class RateEstimate:
    """Steps per second of one attempt, from the timestamps that the program reported."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=PACE_SAMPLES)

    def see(self, progress: ProgressResponse) -> None:
        """Add a report; a step lower than the last one restarts the estimate."""
        sample = (progress.get("time", 0.0), progress.get("step") or 0)
        if self._samples and sample[1] < self._samples[-1][1]:
            self._samples.clear()
        if not self._samples or sample[1] > self._samples[-1][1]:
            self._samples.append(sample)

    def eta_s(self, progress: ProgressResponse) -> float | None:
        """Return the estimated seconds for the remaining steps, or None while there is no estimate."""
        total = progress.get("total_steps")
        if total is None or len(self._samples) < 2:
            return None
        (began, first), (now, last) = self._samples[0], self._samples[-1]
        return (total - last) * (now - began) / (last - first)


def without_counts(why: str) -> str:
    """Return a reason to wait without what counts up or down in it, to see whether it is another one."""
    return _COUNTS.sub("", why)


def state_word(job: JobSummary) -> str:
    """Return one word: the outcome of a finished job, or the state of another one."""
    return job["outcome"] or job["state"]


def exit_code(job: JobSummary) -> int:
    """Return the exit code of a command that has waited for the job."""
    return HELD_CODE if job["state"] == "held" else OUTCOME_CODES[job["outcome"] or "failed"]


def unix(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


def age(iso: str | None, now: float) -> str:
    return readable_duration(round(now - unix(iso))) if iso else "-"


def count(number: float) -> str:
    """Return a number in short form: ``950``, ``5.1k``, ``3.2M``."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"


def tells_step(progress: ProgressResponse | None) -> TypeGuard[ProgressResponse]:
    """Return True if a report has a step; the log of a program may tell the loss alone."""
    return progress is not None and progress.get("step", 0) is not None


def steps(progress: ProgressResponse | None) -> str:
    """Return ``120/400``, ``120``, or ``-`` when the program has not reported one."""
    if not tells_step(progress):
        return "-"
    total = progress.get("total_steps")
    return f"{progress.get('step', 0)}" + (f"/{total}" if total is not None else "")


def last_report(job: Mapping[str, Any] | JobSummary) -> ProgressResponse | None:
    """Return the last report of a job, whether it runs or not."""
    return job.get("progress") or job.get("last_progress")


def progress_share(job: Mapping[str, Any] | JobSummary) -> str:
    """Return the step that a job has reached: the reported one, else the saved one."""
    saved, progress = job.get("saved_step"), last_report(job)
    if not tells_step(progress) and (version := job.get("saved_version")) is not None:
        return f"version {version}"
    return steps(progress) if tells_step(progress) or saved is None else str(saved)


def progress_line(progress: ProgressResponse, eta_s: float | None) -> str:
    """Return the known ones of phase, step, throughput, loss and remaining time."""
    phase = progress.get("phase", "train")
    parts = [] if phase == "train" else [phase]
    parts += [f"step {steps(progress)}"] if tells_step(progress) else []
    if (rate := progress.get("items_per_s")) is not None:
        parts.append(f"{count(rate)} items/s")
    if (loss := progress.get("loss")) is not None:
        parts.append(f"loss {loss:.4f}")
    if eta_s is not None:
        parts.append(f"eta {readable_duration(eta_s)}")
    return "  ".join(parts)


def state_line(job: JobSummary) -> str:
    """Return the state of a job and its reason."""
    word = state_word(job)
    if job["state"] in {"starting", "running", "stopping"}:
        word += f" (attempt {job['attempt']} on {', '.join(job['gpus']) or 'cpu'})"
    return f"{job['name']}: {_because(word, job['why'])}"


def attempt_line(attempt: AttemptResponse) -> str:
    """Return a line with the end of one attempt and the decision about it."""
    line = f"attempt {attempt['number']} ended"
    if attempt["exit_code"] is not None:
        line += f" (exit {attempt['exit_code']})"
    if reason := attempt["message"] or attempt["cause"]:
        line += f": {reason}"
    return f"{line}; {attempt['verdict']}" if attempt["verdict"] else line


def end_line(job: JobDetail) -> str:
    """Return a line with the outcome of a job, the reason, and the digest of its weights if there is one."""
    tries = f" after {job['attempt']} attempts" if job["attempt"] > 1 else ""
    if tries and not is_saved(job) and job["attempts"] and job["attempts"][-1]["resumed_from"] is None:
        tries += ", the last without a known checkpoint"
    sha256 = weights(job)
    end = _because(f"{state_word(job)}{tries}", job["why"])
    return f"{job['name']}: {end}" + (f"; weights sha256 {sha256}" if sha256 else "")


def is_saved(job: JobDetail) -> bool:
    """Return True if the lineage of a job has a checkpoint."""
    return job.get("saved_step") is not None or job.get("saved_version") is not None


def _because(word: str, why: str) -> str:
    """Return a word with its reason, without repeating a word that the reason begins with."""
    if why.startswith(word):
        return why
    return f"{word}: {why}" if why else word


def weights(job: JobDetail) -> str | None:
    return (job["result"] or {}).get("weights_sha256")


def list_cells(job: JobSummary) -> tuple[object, ...]:
    """Return the columns of ``runner list`` in a pipe, as documented in docs/reference/cli.md."""
    return (
        job["id"],
        job["name"],
        job["owner"],
        state_word(job),
        job["attempt"],
        job["priority"],
        progress_share(job),
        job["since"],
        job["why"],
    )


def facts(job: JobDetail) -> list[tuple[str, object]]:
    """Return (name, value) pairs about one job; ``runner show`` prints them before the attempts."""
    result = job["result"] or {}
    pairs: list[tuple[str, object]] = [
        ("id", job["id"]),
        ("name", job["name"]),
        ("owner", job["owner"]),
        ("state", state_word(job)),
        ("why", job["why"]),
        ("verdict", last_verdict(job)),
        ("settings", ", ".join(f"{name}={value}" for name, value in job["settings"].items())),
        ("advice", "; ".join(job["advice"])),
        ("since", job["since"]),
        ("submitted", job["submitted_at"]),
        ("priority", job["priority"]),
        ("gpus", ", ".join(job["gpus"])),
        ("labels", ", ".join(f"{key}={text}" for key, text in job["labels"].items())),
        ("after", dependencies_text(job)),
        ("matrix", of_matrix(job)),
        ("set aside", set_aside_text(job)),
        ("step", progress_share(job)),
        ("epochs", epochs_text(job)),
        ("trace", trace_text(job)),
        ("disk", disk_text(job)),
        ("time", time_text(job.get("account"))),
        ("used", used_text(job.get("account"))),
        ("metrics", metrics_text(job)),
        ("command", command_text(job)),
        ("resources", resources_text(job)),
        ("next start", "; ".join(job["next_start"])),
        ("packages", packages_text(job)),
        ("lineage", lineage_text(job)),
        ("image", job["image"]),
        ("network", network_text(job)),
        ("code", code_text(job)),
        ("git", git_text(job)),
        ("run_dir", job["run_dir"]),
        ("work_dir", work_dir(job)),
        ("final_step", result.get("step")),
        ("weights_sha256", result.get("weights_sha256")),
    ]
    return [(name, value) for name, value in pairs if value not in {None, "", "-"}]


def epochs_text(job: JobDetail) -> str:
    """Return the number of epochs done, the steps of one, and the time that one takes."""
    epochs = job["epochs"]
    if not epochs:
        return ""
    of = "" if epochs["total"] is None else f" of {epochs['total']:.4g}"
    took = "" if epochs["epoch_s"] is None else f", {readable_duration(epochs['epoch_s'])} each"
    return f"{epochs['done']:.4g}{of}, of {epochs['steps_per_epoch']:,} steps{took}"


def trace_text(job: JobDetail) -> str:
    """Return the recorded steps, the time of one, and the place of the whole trace."""
    trace = job["trace"]
    if not trace:
        return ""
    first, last = trace["first_step"], trace["last_step"]
    each = trace["seconds"] / max(last - first, 1)
    place = f"{job['run_dir']}/attempts/{trace['attempt']}/{trace['file']}" if trace["file"] else "not kept"
    return f"steps {first} to {last}, {each * 1000:.4g} ms each; {place}"


OPERATOR_COLUMNS: Final = ("calls", "cpu_ms", "device_ms", "operator")


def operator_rows(job: JobDetail) -> Iterator[tuple[object, ...]]:
    """Yield the columns named by ``OPERATOR_COLUMNS`` of each operator in the table of a trace."""
    trace = job["trace"]
    for each in trace["operators"] if trace else ():
        yield each["calls"], f"{each['cpu_s'] * 1000:.2f}", f"{each['device_s'] * 1000:.2f}", each["name"]


def disk_text(job: JobDetail) -> str:
    """Return the rates at which a job reads from and writes to disks, and the totals of its attempt."""
    disk = job["disk"]
    if not disk:
        return ""
    size = readable_size
    rates = f"reads {size(disk['read_per_s'])}/s, writes {size(disk['written_per_s'])}/s"
    return f"{rates}; {size(disk['read_bytes'])} read, {size(disk['written_bytes'])} written"


_NOT_REPORTED: Final = ("seconds_", "baseline_")
"""Prefixes of the metrics of a result that are no numbers of the training."""


def metrics_text(job: JobDetail) -> str:
    """Return the numbers that a job has reported last."""
    told = (job["result"] or {}).get("metrics", {})
    progress = last_report(job)
    if progress is None or (job["progress"] is None and told):  # it has ended
        numbers = {name: value for name, value in told.items() if not name.startswith(_NOT_REPORTED)}
    else:
        numbers = {"loss": progress.get("loss"), **progress.get("metrics", {})}
    return ", ".join(f"{name}={value:.6g}" for name, value in numbers.items() if value is not None)


def command_text(job: JobDetail) -> str:
    """Return the command of a program, as a shell would take it; nothing of a built-in workload."""
    command = _of_file(job, "workload").get("command")
    if command is None:
        return ""
    import shlex

    return shlex.join(command)


def resources_text(job: JobDetail) -> str:
    """Return the resources of one attempt."""
    asked = _of_file(job, "resources")
    if not asked:
        return ""
    gpus, cpus, memory = asked["gpus"], asked["cpus"], asked["memory"]
    parts = [f"{gpus} GPU{'' if gpus == 1 else 's'}"] if gpus else []
    parts += [f"{cpus:g} CPU{'' if cpus == 1 else 's'}", f"{readable_size(memory)} memory"]
    parts += [f"at most {asked['time_limit']}"] if asked.get("time_limit") else []
    nodes = f"{asked['nodes']} nodes, each with " if asked.get("nodes", 1) > 1 else ""
    return nodes + ", ".join(parts)


def packages_text(job: JobDetail) -> str:
    """Return the packages of a job's image besides its own."""
    image = _of_file(job, "image")
    asked = image.get("requirements")
    if asked is None:
        return ""
    words = asked if isinstance(asked, str) else ", ".join(asked)
    own = [f"{each['name']} {each['version']} of the code" for each in (job["revision"] or {}).get("own", ())]
    words = ", ".join([words, *own])
    return f"{words}, on {image['base']}" if image.get("base") else words


def _of_file(job: JobDetail, section: str) -> Mapping[str, Any]:
    """Return a section of the job file; empty for somebody else's job."""
    file = (job["revision"] or {}).get("job") or {}
    found = file.get(section) or {}
    return found if isinstance(found, dict) else {}


def code_text(job: JobDetail) -> str:
    """Return the code that a program runs; nothing of a job without code, or of somebody else's."""
    revision = job["revision"] or {}
    code = revision.get("job", {}).get("workload", {}).get("code")
    if code is None:
        return ""
    place = code if isinstance(code, str) else code["path"]
    kept = revision.get("code")
    if kept is None:
        return f"{place}, as it is when an attempt starts; nothing promises that it stays the same"
    size = f"{kept['files']} files, {readable_size(kept['bytes'])}"
    told = f"{place}, as submitted: snapshot {kept['snapshot'][:12]}, {size}"
    left = [each["path"] for each in kept.get("left_out", ())]
    more = ", ..." if len(left) > MOST_LEFT_OUT else ""
    return f"{told}, without {', '.join(left[:MOST_LEFT_OUT])}{more}" if left else told


def git_text(job: JobDetail) -> str:
    """Return the commit of a job's code when it was submitted."""
    kept = (job["revision"] or {}).get("code") or {}
    if not kept.get("commit"):
        return ""
    branch = f" on {kept['branch']}" if kept["branch"] else ""
    remote = f" of {kept['remote']}" if branch and kept["remote"] else ""
    state = {True: ", with changes", False: "", None: ", changes unknown"}[kept["dirty"]]
    return f"commit {kept['commit'][:12]}{branch}{remote}{state}"


def work_dir(job: JobDetail) -> str:
    """Return the directory in which a program with kept code works, and leaves its output."""
    if not (job["revision"] or {}).get("code"):
        return ""
    return f"{job['run_dir']}/work/{job['lineage']}"


def lineage_text(job: JobDetail) -> str:
    """Return the lineage of a job that has several, and how to go back to another."""
    number, made = job["lineage"], job["lineages"]
    if made == 1:
        return ""
    return f"{number} of {made}; runner restart --lineage N {job['name']} goes on in another"


def network_text(job: JobDetail) -> str:
    """Return the network that a job reaches, and what is wrong with that."""
    network = job["network"]
    problem = f" ({network['problem']})" if network["problem"] else ""
    return f"{network['access']}{problem}"


def dependencies_text(job: JobDetail) -> str:
    """Return the dependencies of a job, each with the required outcome."""
    return ", ".join(
        f"{job_id} ({condition})" for job_id, condition in (job["revision"] or {}).get("after", ())
    )


def set_aside_text(job: JobDetail) -> str:
    """Return the checkpoints of a program that were moved away for an attempt from an earlier one."""
    places = [(attempt["number"], place) for attempt in job["attempts"] for place in attempt["set_aside"]]
    if not places:
        return ""
    named = ", ".join(f"{place} (for attempt {number})" for number, place in places[:SET_ASIDE_SHOWN])
    more = len(places) - SET_ASIDE_SHOWN
    rest = f" and {more} more" if more > 0 else ""
    return f"{named}{rest}; runner restart --from STEP puts them back"


SET_ASIDE_SHOWN: Final = 5
"""Checkpoints that are set aside and named by ``show`` at most."""


def of_matrix(job: JobDetail) -> str:
    """Return the position of a job in its matrix, and the command that shows the others."""
    sweep = (job["revision"] or {}).get("sweep")
    return f"{sweep['number']} of {sweep['count']}; runner list --sweep {sweep['id']}" if sweep else ""


def last_verdict(job: JobDetail) -> str | None:
    """Return the decision about the last ended attempt."""
    said = next((a["verdict"] for a in reversed(job["attempts"]) if a["verdict"]), None)
    for infinitive, participle in (("resume ", "resumed "), ("restart ", "restarted ")):
        if said is not None and said.startswith(infinitive):
            return participle + said.removeprefix(infinitive)
    stands = job["state"] in {"held", "finished"}  # what was decided before somebody let it go on does not
    return said if stands and said != job["why"] else None


ATTEMPT_COLUMNS: Final = (
    "attempt", "lineage", "placed", "ran", "exit", "cause", "resumed_from", "checkpoint_step", "verdict",
)  # fmt: skip


def attempt_cells(attempt: AttemptResponse) -> tuple[object, ...]:
    """Return the columns named by ``ATTEMPT_COLUMNS``."""
    begin, end = attempt["launched_at"], attempt["ended_at"]
    return (
        attempt["number"],
        attempt["lineage"],
        attempt["placed_at"],
        readable_duration(unix(end) - unix(begin)) if begin and end else None,
        attempt["exit_code"],
        attempt["cause"] or ("running" if not end else None),
        attempt["resumed_from"],
        attempt["checkpoint_step"],
        attempt["verdict"],
    )


def intruders(device: Mapping[str, Any]) -> str:
    """Return the foreign processes on an allocated device; for other devices the reason names them."""
    if device.get("state") != "allocated":
        return ""
    strangers = [each for each in device.get("processes") or () if each["foreign"]]
    named = (", ".join(map(str, _known(each))) for each in strangers)
    return "; ".join(f"foreign process ({words})" for words in named)


def _known(process: Mapping[str, Any]) -> Iterator[object]:
    yield f"pid {process['pid']}"
    yield from (process[key] for key in ("user", "program") if process.get(key))
