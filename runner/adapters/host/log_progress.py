"""The progress of a program that reports nothing, from what it prints.

A pattern of the job file is matched by RE2.  Without one, the lines of tqdm, of Keras, of Hugging Face's
``Trainer`` and of some widely copied scripts are recognised.  The log is hostile: each look reads a limited
part, lines have a limit, and every expression takes linear time.  Python's expressions keep the interpreter
meanwhile, RE2's do not.
"""

import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from jobs.contract import Phase, Status, open_regular
from runner.core.accounting.curve_set import LogNumbers
from runner.files.job.progress import FIELDS, compile_pattern

LOOK_BYTES: Final = 64 * 1024
"""New bytes of a log that one look reads at most; of more, the end.  The worst pattern takes 0.3 s for it,
twice that where each line has a number that is not finite."""

LINE_BYTES: Final = 4096
"""A longer line is not searched."""

MAX_NUMBER: Final = 32
"""Characters of a number."""

MAX_STEP: Final = 10**12

MOST_NEW: Final = 2048
"""Lines with numbers that wait for who asks; of more, the last."""

APART_S: Final = 1e-6
"""Between the times of two lines of one look: the file has only the time of the last."""

_LINE_END: Final = re.compile(rb"[\r\n]+")
_NOT_FINITE: Final = re.compile(rb"(?i)(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?!\w)")
_VALUE: Final = rb"(?:[-+]?(?i:nan|inf(?:inity)?)(?!\w)(?:\.0{0,9})?|[0-9.eE+-]{1,32})"
"""A value, which may be no finite one; Lightning fills up ``nan.0``."""

_ESCAPES: Final = re.compile(rb"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_NUMBER: Final = re.compile(rb"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_THOUSANDS: Final = re.compile(rb"\s*[0-9]{1,3}(?:,[0-9]{3})+\s*")
_COUNTS: Final = frozenset({"step", "total", "epoch"})
"""Groups in which a comma is no decimal one."""

_COUNT: Final = rb"([0-9]{1,12}|[0-9]{1,4}(?:\.[0-9]{1,2})?[kMGTPE]?)"
"""A count of tqdm, with ``unit_scale`` in thousands, millions and so on."""

_TQDM: Final = re.compile(
    rb"[0-9]{1,3}%\|[^|]{0,400}\| ?" + _COUNT + rb"/" + _COUNT + rb" \[([^\]|]{1,400})\]"
)
"""A bar without its title.  With one, each byte of a long line would begin a search of 200 others."""

_TITLE_BYTES: Final = 200
_TITLE_BEGIN: Final = re.compile(rb"[|%]")
_TQDM_RATE: Final = re.compile(rb", *([0-9.]{1,16})(?:([kMGTPE]?) ?[A-Za-z]{1,12}/s\b|(s)/ ?[A-Za-z])")
_SCALES: Final = {
    b"": 1,
    **{each: 1000**power for power, each in enumerate((b"k", b"M", b"G", b"T", b"P", b"E"), 1)},
}
_BYTES: Final = re.compile(rb"[0-9][kMGTPE]?i?B/s|s/B\b")
"""The rate of a bar that counts bytes: a file is fetched or read."""

_TQDM_ALONE: Final = re.compile(rb"(?:^|[ :\r])([0-9]{1,12})it \[([0-9:]{4,20}, [^\]|]{1,400})\]")
"""A counter without a length, and so without a bar."""

_TQDM_LOSS: Final = re.compile(rb"(?i)[ ,](?:train_|step_|avg_)?loss[=:] ?(" + _VALUE + rb")")
_TQDM_EPOCH: Final = re.compile(
    rb"(?:[Ee]poch:? *\[?|^ {1,12}(?=[0-9]{1,6}/))([0-9]{1,6})(?: *(?:/|of) *([0-9]{1,6}))?\]?"
)
_RICH: Final = re.compile(
    rb"[\x81\xb8\xba] +([0-9]{1,12})/([0-9]{1,12}) +[0-9]{1,3}:[0-9:]{2,10}"
    rb"(?: \xe2\x80\xa2 [0-9:-]{4,14})?(?: ([0-9.]{1,16})it/s)?"
)
"""Text after a bar of Rich."""

_RICH_BAR: Final = "━━━".encode()
_RICH_EPOCH: Final = re.compile(rb"Epoch ([0-9]{1,6})/([0-9]{1,6}) ")
"""The title of a bar of Lightning; its epochs count from zero up to the last one."""
_OTHER_BAR: Final = re.compile(
    rb"(?i)download|map|filter|load|generat|tokeni|eval|valid|test|sanity|predict|sav|fetch|cast|resolv|shard"
    rb"|sampl|prepar|extract|writ|upload|warm"
)
"""Descriptions of bars that are not the training."""

_EVALUATION: Final = re.compile(rb"(?i)eval|valid|test")
"""Descriptions of bars of an evaluation, which is a part of the work; so is a shorter bar without one."""

_TQDM_TIME: Final = re.compile(rb"((?:[0-9]{1,6}:){1,3}[0-9]{2})<((?:[0-9]{1,6}:){1,3}[0-9]{2})")
"""The time that a bar has taken, and what is left."""

_TRAINER: Final = re.compile(rb"\{'(?:loss|train_loss|eval_loss)': [^{}]{1,2000}\}")
_KERAS_EPOCH: Final = re.compile(rb"Epoch ([0-9]{1,6})/([0-9]{1,6})(?:\s*| \([^()]{1,200}\)\s*)")
_KERAS: Final = re.compile(
    rb" {0,12}([0-9]{1,12})/([0-9]{1,12}) (?:\[[=>.]{1,100}\] |(?:\xe2\x94\x81){1,100} )?(?:- )?"
    rb"(?:ETA: )?(?:[0-9]{1,6}(?:s|ms|us|:)|\?)"
)
_KERAS_RATE: Final = re.compile(rb"([0-9.]{1,16})(s|ms|us)/step")
_KERAS_ITEM: Final = re.compile(rb" - ([A-Za-z][A-Za-z0-9_]{0,63}): (" + _VALUE + rb")(?= |$)")
_UNITS_S: Final = {b"s": 1.0, b"ms": 1e-3, b"us": 1e-6}

_LINES: Final = (
    # nanoGPT
    re.compile(rb"iter (?P<step>[0-9]{1,12}): loss (?P<loss>" + _VALUE + rb"), time (?P<ms>[0-9.]{1,16})ms"),
    re.compile(
        rb"step (?P<step>[0-9]{1,12}): train loss (?P<train_loss>" + _VALUE + rb"), "
        rb"val loss (?P<val_loss>" + _VALUE + rb")"
    ),
    # the examples of PyTorch: mnist, word_language_model
    re.compile(
        rb"Train Epoch: (?P<epoch>[0-9]{1,6}) \[(?P<done>[0-9]{1,12})/(?P<length>[0-9]{1,12}) "
        rb"\([0-9.]{1,8}%\)\]\s{1,8}Loss: (?P<loss>" + _VALUE + rb")"
    ),
    re.compile(
        rb"\| epoch {1,6}(?P<epoch>[0-9]{1,6}) \| {1,12}(?P<done>[0-9]{1,12})/ {0,12}(?P<length>[0-9]{1,12}) "
        rb"batches \| lr {1,8}[0-9.]{1,16} \| ms/batch {1,8}(?P<ms>[0-9.]{1,16}) \| "
        rb"loss {1,8}(?P<loss>" + _VALUE + rb")"
    ),
    # loops that name the epoch on a line of its own, and in it the batches
    re.compile(
        rb"Batch (?P<done>[0-9]{1,12})/(?P<length>[0-9]{1,12}), Loss: (?P<loss>" + _VALUE + rb")(?:,|$)"
    ),
)
"""Lines of scripts that many copy.  Their epochs count from one."""

_STEP: Final = re.compile(
    rb"(?i)(?:^|[\s\[({|,;])(?:global[ _]?)?(?:step|iter|iteration)(?:\(train\))?[\s:=#\[(]{1,12}"
    rb"([0-9]{1,12})(?![.,]?[0-9])(?: ?/ {0,12}([0-9]{1,12}))?"
)
_EPOCH: Final = re.compile(rb"(?i)\bepoch[\s:=#\[(]{0,6}([0-9]{1,6})(?: ?(?:/|of) ?([0-9]{1,6}))?")
_IN_EPOCH: Final = re.compile(
    rb"(?:Epoch:? ?(\(train\) +)?\[|Train: )([0-9]{1,6})\]? {0,4}\[ {0,12}([0-9]{1,12})/([0-9]{1,12})[\] ]"
)
"""Epoch and batch, as the references of torchvision, mmengine and timm print them."""

_LOSS: Final = re.compile(
    rb"(?i)(?:^|[\s|,;({'])(?:train(?:ing)?[_ /]|total_|lm |avg[_ ]|step_)?loss[\s:=]{1,4}(" + _VALUE + rb")"
)
_EVALUATES: Final = re.compile(rb"(?i)\bval\b|eval|valid|test")
_BOOSTED: Final = re.compile(rb"\[?([0-9]{1,9})\]?:?\t(?:learn|train|valid|eval|test)[^\t]{0,100}:")
"""A round of XGBoost, LightGBM or CatBoost."""

_TRAINER_ITEM: Final = re.compile(rb"'([A-Za-z][A-Za-z0-9_/]{0,63})': '?(" + _VALUE + rb")'?[,}]")


class _Evaluation(NamedTuple):
    """A bar of an evaluation, in seconds."""

    whole_s: float
    left_s: float


class _Bar(NamedTuple):
    """A bar of tqdm."""

    step: int
    total: int | None
    rate: float | None
    loss: float | None


@dataclass(slots=True)
class LogProgressReader:
    """Reads the log of one attempt, piece by piece, and remembers what it has told last."""

    path: Path
    pattern: str | None
    open_file: Callable[[Path], BufferedReader] = open_regular
    _offset: int = 0
    _rest: bytes = b""
    _known: dict[str, float] = field(default_factory=dict)
    _time_s: float = 0.0
    _longest_bar: int = 0
    _evaluation: _Evaluation | None = None
    _keras_epoch: tuple[int, int] | None = None
    _keras_length: int | None = None
    _new: deque[LogNumbers] = field(default_factory=partial(deque, maxlen=MOST_NEW))
    _unfinished: LogNumbers | None = None  # of the text behind the last end of a line
    _is_formal: bool = False  # a bar or the line of a known program has told a step: words do not count
    _lock: Lock = field(default_factory=Lock)

    def status(self) -> Status | None:
        """Return the progress that the log tells, None if it tells none."""
        with self._lock:
            self._read()
            return self._status() if self._known else None

    def numbers(self, *, ended: bool) -> tuple[LogNumbers, ...]:
        """Return the numbers of the lines since the last call; of an unfinished one if the log has ended."""
        with self._lock:
            self._read()
            new = (*self._new, *filter(None, (self._unfinished if ended else None,)))
            self._new.clear()
            return new

    def _read(self) -> None:
        """Take in what the log has gained since the last look."""
        try:
            file = self.open_file(self.path)
        except OSError:
            return
        with file:
            state = os.fstat(file.fileno())
            if state.st_size <= self._offset:
                return
            begin = max(self._offset, state.st_size - LOOK_BYTES)
            rest = self._rest if begin == self._offset else b""
            try:
                text = rest + os.pread(file.fileno(), state.st_size - begin, begin)
            except OSError:
                return
        offset, self._offset = self._offset, state.st_size
        *lines, self._rest = _LINE_END.split(text)
        if begin > offset:
            lines = lines[1:]  # the end of one
        # A bar of tqdm is not followed by a line end, but preceded by one.
        found = [self._of_line(line) for line in (*lines, self._rest)]
        self._rest = self._rest[-LINE_BYTES:]
        for number, each in enumerate(found):
            self._known.update(each)
            if each or self._evaluation:
                self._time_s = state.st_mtime
            numbers = {name: value for name, value in each.items() if name not in {"step", "total"}}
            told = LogNumbers(state.st_mtime + number * APART_S, _count(self._known.get("step")), numbers)
            self._unfinished = told if numbers else None  # the last one of all may be a part of a line
            if numbers and number < len(lines):
                self._new.append(told)
        if begin and not offset:  # which epoch it was, and which bar is the longest, was said before
            self._new = deque([*self._new][-1:], maxlen=MOST_NEW)

    def _of_line(self, line: bytes) -> dict[str, float]:
        """Return the numbers that a line tells, by the names of groups."""
        if not 0 < len(line) <= LINE_BYTES:
            return {}
        return {
            name: value
            for name, value in self._told(line).items()
            if math.isfinite(value) or name not in _FINITE
        }

    def _told(self, line: bytes) -> dict[str, float]:
        bar = self._bar(line) if b"|" in line else _counted(line) if b"it [" in line else None
        if self.pattern is not None:
            found = dict(_of_pattern(self.pattern, line))
            self._evaluation = None if found else self._evaluation
            return found
        if bar is not None:
            self._is_formal = True
            values = {"step": bar.step, "total": bar.total, "items_per_s": bar.rate, "loss": bar.loss}
            return {name: float(value) for name, value in values.items() if value is not None}
        if b"': " in line:
            return dict(_of_trainer(line))
        found = self._of_keras(line) or dict(_of_known_script(line, self._keras_epoch))
        found = found or (dict(_of_rich(line)) if _RICH_BAR in line else {})
        self._is_formal = self._is_formal or bool(found)
        return found or ({} if self._is_formal else dict(_of_words(line)))

    def _of_keras(self, line: bytes) -> dict[str, float]:
        """Return the numbers in a line of Keras; those of an evaluation after the training do not count."""
        if epoch := _KERAS_EPOCH.fullmatch(line):
            self._keras_epoch, self._keras_length = (int(epoch[1]), int(epoch[2])), None
            return {}
        match = _KERAS.match(line := _ESCAPES.sub(b"", line)) if b"/" in line[:64] else None
        rate = _KERAS_RATE.search(line) if match else None
        if match is None or not (rate or b"ETA: " in match[0]):
            return {}
        done, length = int(match[1]), int(match[2])
        if self._keras_epoch is None:
            before, total = 0, length
        elif length != (self._keras_length or length) or done > length:
            return {}
        else:
            self._keras_length = length
            before, total = (self._keras_epoch[0] - 1) * length, self._keras_epoch[1] * length
        found = {name: _number(text) for name, text in _KERAS_ITEM.findall(line)}
        values = {_text(name): value for name, value in found.items() if value is not None}
        step_s = (_number(rate[1]) or 0.0) * _UNITS_S[rate[2]] if rate else 0.0
        pace = {"items_per_s": 1 / step_s} if step_s > 0 else {}
        return {**values, **pace, "step": float(before + done), "total": float(total)}

    def _bar(self, line: bytes) -> _Bar | None:
        """Return the last bar in a line if it is that of the training."""
        line, begin, match = _ESCAPES.sub(b"", line), 0, None
        for each in _TQDM.finditer(line):
            begin, match = 0 if match is None else match.end(), each
        if match is None:
            return None
        before = line[max(begin, match.start() - _TITLE_BYTES) : match.start()]
        title = _TITLE_BEGIN.split(before)[-1].removesuffix(b" ")
        done, length, state = _scaled(match[1]), _scaled(match[2]), match[3]
        is_evaluation = _EVALUATION.search(title) or (not title.strip() and length < self._longest_bar)
        self._evaluation = _evaluation_of(state) if is_evaluation and done < length else None
        if not length or _OTHER_BAR.search(title) or is_evaluation or _BYTES.search(state):
            return None
        step, total = _over_epochs(title, done, length)
        if not title.strip():
            self._longest_bar = length
        rate = _TQDM_RATE.search(state)
        loss = _TQDM_LOSS.search(state)
        return _Bar(step, total, _rate(rate) if rate else None, _number(loss[1]) if loss else None)

    def _status(self) -> Status:
        known = self._known
        runs = self._evaluation
        return Status(
            phase=Phase.TRAIN if runs is None else Phase.EVAL,
            eval_s=None if runs is None else runs.whole_s,
            eval_left_s=None if runs is None else runs.left_s,
            time=self._time_s,
            step=_count(known.get("step")),
            total_steps=_count(known.get("total")),
            items_per_s=_positive(known.get("items_per_s")),
            loss=known.get("loss"),
            metrics={name: value for name, value in known.items() if name not in _SHOWN},
        )


def _of_pattern(pattern: str, line: bytes) -> Iterator[tuple[str, float]]:
    """Yield the numbers of the groups of a pattern; one for digits finds those that are not finite, too."""
    compiled = compile_pattern(pattern)
    digits = _NOT_FINITE.sub(lambda found: b"0.0".rjust(len(found[0]), b"0"), line)
    match = compiled.search(line)
    if digits != line and (match is None or None in match.groups()):
        match = compiled.search(digits) or match
    for name, index in compiled.groupindex.items() if match else ():
        place = slice(*match.span(index))
        text = line[place]
        if _text(name) in _COUNTS and _THOUSANDS.fullmatch(text):
            text = text.replace(b",", b"")
        value = _number(text)
        if value is None and digits[place] != line[place]:
            value = math.nan
        if value is not None:
            yield _text(name), value


def _evaluation_of(state: bytes) -> _Evaluation | None:
    """Return the state of the bar of an evaluation; None if it does not know yet how long it takes."""
    match = _TQDM_TIME.search(state)
    if match is None:
        return None
    passed_s, left_s = (_clock_s(text) for text in match.groups())
    return _Evaluation(passed_s + left_s, left_s)


def _clock_s(text: bytes) -> float:
    """Return the seconds of ``1:02:03`` or ``02:03``."""
    seconds = 0
    for part in text.split(b":"):
        seconds = seconds * 60 + int(part)
    return float(seconds)


def _counted(line: bytes) -> _Bar | None:
    """Return the counter in a line if it is that of the training."""
    found = _TQDM_ALONE.search(_ESCAPES.sub(b"", line))
    if found is None or _OTHER_BAR.search(line[: found.start()]):
        return None
    rate, loss = _TQDM_RATE.search(found[2]), _TQDM_LOSS.search(found[2])
    return _Bar(int(found[1]), None, _rate(rate) if rate else None, _number(loss[1]) if loss else None)


def _of_rich(line: bytes) -> Iterator[tuple[str, float]]:
    """Yield the numbers beside a bar of Rich."""
    line = _ESCAPES.sub(b"", line)
    title, found = line.partition(_RICH_BAR)[0], _RICH.search(line)
    if found is None or _OTHER_BAR.search(title):
        return
    epoch = _RICH_EPOCH.search(title)
    before, last = (int(epoch[1]), int(epoch[2])) if epoch else (0, 0)
    yield "step", float(before * int(found[2]) + int(found[1]))
    yield "total", float((last + 1) * int(found[2]))
    yield from _named("items_per_s", found[3])
    if loss := _TQDM_LOSS.search(line, found.end()):
        yield from _named("loss", loss[1])


def _of_words(line: bytes) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line with the words step and loss; those of an evaluation do not count.

    A step of an epoch counts if the length of the epoch is there.
    """
    if found := _BOOSTED.match(line):
        yield "step", float(found[1])
        return
    loss = _LOSS.search(line := _ESCAPES.sub(b"", line)) if b"oss" in line else None
    within, step = (_IN_EPOCH.search(line), _STEP.search(line)) if loss else (None, None)
    found = within or step
    if loss is None or found is None or _EVALUATES.search(line[: found.start()]):
        return
    if within:
        before = int(within[2]) - bool(within[1])  # those of mmengine count from one
        yield "step", float(before * int(within[4]) + int(within[3]))
    elif step:
        epoch = _EPOCH.search(line[: step.start() + 1])
        if epoch and not step[2]:
            return
        before, whole = (int(epoch[1]) - bool(epoch[2]), epoch[2]) if epoch else (0, b"1")
        length = int(step[2] or 0)
        yield "step", float(before * length + int(step[1]))
        if whole and length:
            yield "total", float(int(whole) * length)
    yield from _named("loss", loss[1])


def _named(name: str, text: bytes | None) -> Iterator[tuple[str, float]]:
    if (value := _number(text)) is not None:
        yield name, value


_FINITE: Final = frozenset({"step", "total", "items_per_s"})
"""Counts and rates: one that is not finite is left out."""

_SHOWN: Final = frozenset(FIELDS) - {"epoch"}


def _over_epochs(title: bytes, done: int, length: int) -> tuple[int, int | None]:
    """Return step and total of the whole training from the bar of one epoch, or of everything.

    ``Epoch 3/10`` counts from one, as most scripts do; ``Epoch 3`` counts from zero, as Lightning does.
    """
    epoch = _TQDM_EPOCH.search(title)
    if epoch is None:
        return done, length
    number, of = int(epoch[1]), int(epoch[2]) if epoch[2] else None
    before = number if of is None else max(number - 1, 0)
    return before * length + done, None if of is None else of * length


def _scaled(text: bytes) -> int:
    """Return a count of tqdm: 1200 for ``1.20k``."""
    digits = text.rstrip(b"kMGTPE")
    value: int = round(float(digits) * _SCALES[text[len(digits) :]])
    return value


def _rate(match: re.Match[bytes]) -> float | None:
    """Return the items per second of ``1.5s/it``, ``27.5it/s`` or ``1.20kit/s``."""
    value = _number(match[1])
    if value is None or match[3]:
        return 1 / value if value else None
    # A scaled rate has three digits: "12.50Mails/s" counts mails.
    is_scaled = len(match[1].replace(b".", b"")) <= 3
    return value * _SCALES[match[2]] if is_scaled else value


def _of_known_script(line: bytes, running: tuple[int, int] | None) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a line of a script that many copy; ``running`` is the epoch of a line before."""
    match = next(filter(None, (pattern.match(line) for pattern in _LINES)), None)
    if match is None:
        return
    found = {name: value for name, text in match.groupdict().items() if (value := _number(text)) is not None}
    if (milliseconds := found.pop("ms", 0.0)) > 0:
        yield "items_per_s", 1000 / milliseconds
    if "done" in found:
        length, (epoch, epochs) = found.pop("length"), running or (1, 1)
        yield "step", (found.get("epoch", epoch) - 1) * length + found.pop("done")
        if "epoch" not in found:
            yield "total", epochs * length
    yield from found.items()


def _of_trainer(line: bytes) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a line of Hugging Face's ``Trainer``, such as ``{'loss': 2.3}``."""
    match = _TRAINER.search(line)
    for name, text in _TRAINER_ITEM.findall(match[0]) if match else ():
        if (value := _number(text)) is not None:
            yield _text(name), value


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _number(text: bytes | None) -> float | None:
    """Return a number, which may be NaN or infinite; None for anything else."""
    if text is None or len(text) > MAX_NUMBER:
        return None
    text = text.strip().removesuffix(b"%")
    if lost := _NOT_FINITE.match(text):
        return float(lost[0])
    return float(text) if _NUMBER.fullmatch(text) else None


def _count(value: float | None) -> int | None:
    return None if value is None or not 0 <= value <= MAX_STEP else int(value)


def _positive(value: float | None) -> float | None:
    return None if value is None or value < 0 else value
