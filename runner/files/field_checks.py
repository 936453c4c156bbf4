"""Checks of the names, variables and paths in a job file.

Each function returns the value or raises ``ValueError`` with the message for the user. The list of refused
variables is a security boundary: some of them reach code that runs as root on the host (CVE-2025-23266:
``LD_PRELOAD`` in a container hook), others change which devices a job sees.
"""

import re
import shlex
import unicodedata
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

from runner.base.textfile import one_line, quoted
from runner.core.ports.users import is_of_system

DATA_ROOT: Final = PurePosixPath("/data")
"""All mounts of a job lie below this directory."""

WORKLOAD_TARGET: Final = DATA_ROOT / "workload"
"""The mount point of the workload's data; a job cannot mount anything over it."""

WEIGHTS_TARGET: Final = DATA_ROOT / "init-weights"
"""The mount point of the weights that a training begins with; reserved as well."""

INPUT_TARGET: Final = PurePosixPath("/inputs")
"""Place in a container of the paths that a workload names besides its data, each below the field's name."""

SECRETS_TARGET: Final = PurePosixPath("/run/secrets")
"""The directory of the secrets of a job."""

CODE_TARGET: Final = PurePosixPath("/code")
"""The mount point of the code of a program."""

MAX_TEXT: Final = 32 * 1024

NUMBER_REFUSED: Final = "must not be a number, because job ids are numbers; add a letter"

_NUMBER: Final = re.compile(r"[0-9]+")
_POLICY: Final = re.compile(r"[a-z][a-z0-9-]{0,62}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")

_LOADER: Final = re.compile(r"LD_.*|GLIBC_TUNABLES|GCONV_PATH|BASH_ENV|ENV|PYTHON(HOME|STARTUP|INSPECT)")
HOOK_VARIABLES: Final = (
    r"NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|DISABLE_REQUIRE|REQUIRE_.*|MIG_.*|IMEX_.*|CTK_.*|CONTAINER_.*"
    r"|GDS|GDRCOPY|MOFED|NVSWITCH)"
)
"""Variables that the programs read which put NVIDIA's devices into containers, as root."""

_DEVICES: Final = re.compile(
    HOOK_VARIABLES + r"|(CUDA|AMD|ROCR|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|CUDA_DEVICE_ORDER"
)
_ENGINE: Final = re.compile(r"DOCKER_.*|CONTAINER_HOST")
_RUNNER: Final = re.compile(
    r"RUNNER_.*|HOME|USER|LOGNAME|PATH|TMPDIR|XDG_CACHE_HOME|TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR"
    r"|CUDA_CACHE_PATH|CUBLAS_WORKSPACE_CONFIG|PYTHONHASHSEED|OMP_WAIT_POLICY"
)
_THREADS: Final = re.compile(r"(OMP|MKL|OPENBLAS)_NUM_THREADS")
_ALLOCATOR: Final = re.compile(r"PYTORCH_((CUDA|HIP)_)?ALLOC_CONF")
_BLOCKING: Final = re.compile(r"(CUDA|HIP)_LAUNCH_BLOCKING|AMD_SERIALIZE_KERNEL")
_PASSWORD: Final = re.compile(r".*(PASSWORD|PASSWD|PASSPHRASE|_PWD)")
_SECRET: Final = re.compile(
    r".*(SECRET|CREDENTIALS?|(API|ACCESS|ACCOUNT|AUTH|ENCRYPTION|KAGGLE|PRIVATE|SECRET)_?KEY|TOKEN"
    r"|(ADMIN|DB|FTP|LDAP|MAIL|MQTT|PG|PROXY|REDIS|ROOT|SMTP|SQL|USER)_?PASS)"
)
_OF_TEXT: Final = re.compile(
    r"(.*_)?(EOS|BOS|PAD|MASK|UNK|SEP|CLS|EOT|NUM|MAX|MIN|STOP|START|BEGIN|END|SPECIAL|FIRST|LAST|NEXT|PER"
    r"|IMAGE|IMG|VIDEO|AUDIO|LANG|PROMPT|PREFIX|SUFFIX|NEWLINE|BLANK|INSTANCE|PLACEHOLDER|INITIALIZER|TRIGGER"
    r"|CONCEPT)_TOKEN"
)
_HARMLESS: Final = re.compile(
    r"|[+-]?[0-9]{1,15}([.][0-9]+)?|true|false|yes|no|none|<.*>|\[.*\]|~?/[^:@]*"
    r"|null|empty|dummy|fake|unused|placeholder|not-needed|sk-no-key-required",
    re.IGNORECASE,
)
_ISSUED: Final = re.compile(
    r"hf_[A-Za-z0-9]{20,}|sk-(?=\S*[0-9])(?=\S*[A-Z])[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|nvapi-[\w-]{20,}"
    r"|(?i:bearer|basic|token)\s+(?=\S*[0-9])\S{16,}|https://(hooks\.slack\.com/services|discord(app)?\.com/api/webhooks)/.+|wandb_v1_\w{20,}"
    r"|.*;(?:Account|SharedAccess)Key=.+|.*\"auth\": ?\".+|https://[0-9a-f]{32}@.+"
    r"|eyJ[\w-]+\.[\w-]+\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----.*|[a-z][a-z0-9+.-]*://[^/@:\s]*:(?!\$)[^/@\s]+@.*",
    re.DOTALL,
)
"""Tokens as well-known services issue them, and addresses with a password."""

REFUSED_VARIABLES: Final = (
    (_LOADER, "controls which code programs load; set it in the image"),
    (_DEVICES, "selects devices, which is the runner's task; set resources.gpus"),
    (_ENGINE, "configures the container engine, which a job cannot do; remove it"),
    (_RUNNER, "is set by the runner; remove it"),
    (_THREADS, 'is set by the runner; set "threads" in the profile'),
    (_ALLOCATOR, 'is set by the runner; set "allocator" in the profile'),
    (_BLOCKING, 'is set by the runner; set "launch_blocking" in the profile'),
)
"""Patterns and messages; the first pattern that matches counts."""


def check_pattern(pattern: str, wanted: str) -> Callable[[str], str]:
    """Return the check that a whole text fits a pattern; ``wanted`` says of what it is the form."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"must be {wanted}, not {quoted(value)}")
        return value

    return check


check_job_name: Final = check_pattern(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    "at most 63 letters, digits, dots, dashes or underscores and begin with a letter or digit",
)
"""Returns a name that is safe as part of a file, container or host name."""


def check_new_name(value: str) -> str:
    """Return a new job's name, which must not look like a job id."""
    if is_number(check_job_name(value)):
        raise ValueError(NUMBER_REFUSED)
    return value


def refuse_number(value: object) -> object:
    """Return the value of a name field; refuse a number, which would be refused in quotes too."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(NUMBER_REFUSED)
    return value


def is_number(value: str) -> bool:
    """Return True if a name could be the id of a job."""
    return _NUMBER.fullmatch(value) is not None


_LETTERS: Final = str.maketrans(
    {
        "ß": "ss",
        "æ": "ae",
        "Æ": "AE",
        "œ": "oe",
        "Œ": "OE",
        "ø": "o",
        "Ø": "O",
        "đ": "d",
        "Đ": "D",
        "ł": "l",
        "Ł": "L",
    }
)
"""Letters of the Latin alphabet that Unicode does not take apart."""


def make_job_name(stem: str) -> str:
    """Return the default name of a job whose file has this stem; never fails.

    Letters with marks become the letters below the marks: ``größe`` is ``grosse``.
    """
    plain = unicodedata.normalize("NFKD", stem.translate(_LETTERS))
    bare = "".join(letter for letter in plain if not unicodedata.combining(letter))
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", bare).strip("-._")
    return (f"job-{safe}" if is_number(safe) else safe)[:63] or "job"


def check_variable_name(value: str) -> str:
    """Return the name of an environment variable that a job may set."""
    if not _VARIABLE.fullmatch(value):
        raise ValueError(
            "is not a valid variable name: use letters, digits and underscores, and do not begin with a digit"
        )
    for pattern, reason in REFUSED_VARIABLES:
        if pattern.fullmatch(value.upper()):
            way = f", or write env {value}=VALUE before the command"
            raise ValueError(reason + ("" if pattern in {_DEVICES, _RUNNER} else way))
    return value


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable is a secret: by its value, or by the last words of its name.

    ``EOS_TOKEN``, a number in ``NUM_TOKEN`` and the path of a file with a secret are none.
    """
    if _ISSUED.fullmatch(value):
        return True
    upper = name.upper()
    if _PASSWORD.fullmatch(upper):
        return value != "" and not value.startswith(("/", "~/"))
    is_named = _SECRET.fullmatch(upper) is not None and _OF_TEXT.fullmatch(upper) is None
    return is_named and _HARMLESS.fullmatch(value) is None


def has_secret(text: str) -> bool:
    """Return True if a text is, or has as one of its words, what a service has issued."""
    return any(map(_ISSUED.fullmatch, (text, *re.split(r"[\s=\"',;()]+", text))))


def check_text(value: str) -> str:
    """Return a value of the environment, or an argument of a program."""
    if len(value.encode()) > MAX_TEXT:
        raise ValueError("is longer than 32 KiB; put it in a file and mount that")
    return value


check_umask: Final = check_pattern(r"0?0[0-7]{2}", 'three octal digits that begin with 0, such as "022"')
"""Returns a umask in octal digits, which leaves the owner its rights."""


def check_label_key(value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise ValueError(
            "is not a valid label: use at most 63 ASCII letters, digits, dots, dashes, slashes "
            "or underscores, and begin and end with a letter or digit"
        )
    if re.match(r"runner([./]|$)", value, re.IGNORECASE):
        raise ValueError('labels that begin with "runner" are reserved; choose another name')
    return value


def check_label_value(value: str) -> str:
    if len(value) > 255 or not value.isprintable():
        raise ValueError("must be one line of at most 255 characters")
    return value


def check_host_path(value: str) -> str:
    """Return a path on the host as written; whether it exists is not checked here."""
    if not value:
        raise ValueError("must not be empty; write a path")
    if value.startswith("~"):
        written = quoted("/home/you" + value[1:])
        raise ValueError(f'"~" is not expanded, because the runner may run as another user; write {written}')
    if value.startswith("$") or "${" in value:
        raise ValueError(f"variables are not expanded in {quoted(value)}; write the full path")
    if len(value.encode()) > 4095:
        raise ValueError("is longer than 4095 bytes, the limit for a path")
    return value


def check_policy(value: str) -> str:
    """Return the name of a policy, or the path of its file as written."""
    if is_policy_path(value):
        return check_host_path(value)
    if not _POLICY.fullmatch(value):
        raise ValueError(
            f"must be the name of a policy or of a file, such as ./policy.yaml, not {quoted(value)}"
        )
    return value


def is_policy_path(value: str) -> bool:
    """Return True if the text is a path and not the name of a shipped policy."""
    return "/" in value or value.endswith((".yaml", ".yml")) or value.startswith(("~", "$"))


def suggest_mount(source: PurePosixPath, target: PurePosixPath | None = None) -> str | None:
    """Return the option that mounts a path, at ``target`` or by its name; None if no job may have it."""
    if is_of_system(source):
        return None
    if target is None:
        target = DATA_ROOT / (source.name or "all")
        if target in {WORKLOAD_TARGET, WEIGHTS_TARGET}:
            target = DATA_ROOT / f"my-{source.name}"
    return f"--mount {shlex.quote(one_line(f'{source}:{target}'))}"


def check_mount_target(value: str) -> str:
    """Return a path inside the container at which a job may mount something."""
    target = PurePosixPath(value)
    if ".." in target.parts or not target.is_relative_to(DATA_ROOT) or target == DATA_ROOT:
        raise ValueError(f"must be a path below /data, such as /data/corpus, not {quoted(value)}")
    if target.is_relative_to(WORKLOAD_TARGET):
        raise ValueError(f"{WORKLOAD_TARGET} is reserved for the workload's data; choose another path")
    if target.is_relative_to(WEIGHTS_TARGET):
        raise ValueError(f"{WEIGHTS_TARGET} is reserved for workload.init_from; choose another path")
    if not value.isprintable():
        raise ValueError(f"must have only printable characters, not {quoted(value)}")
    return str(target)
