from pathlib import Path

import pytest

from jobs.contract import Status
from runner.adapters.host.log_progress import LINE_BYTES, LOOK_BYTES, LogProgressReader


def told(tmp_path: Path, text: bytes, pattern: str | None = None) -> Status | None:
    path = tmp_path / "log.txt"
    path.write_bytes(text)
    return LogProgressReader(path, pattern).status()


def steps(status: Status | None) -> tuple[int, int | None] | None:
    return None if status is None else (status.step, status.total_steps)


PATTERN = r"step (?P<step>\d+)/(?P<total>\d+).*loss (?P<loss>[\d.]+) acc (?P<acc>\S+)"


def test_the_groups_of_a_pattern_are_step_total_loss_and_metrics(tmp_path: Path) -> None:
    text = b"step 1/9: loss 9.5 acc 0.1\nhello\nstep 3/9: loss 2.5 acc 0.75\nbye\n"
    status = told(tmp_path, text, PATTERN)
    assert status is not None
    assert (steps(status), status.loss, status.metrics) == ((3, 9), 2.5, {"acc": 0.75})
    assert status.time == (tmp_path / "log.txt").stat().st_mtime


@pytest.mark.parametrize("value", [b"nan", b"inf", b"1e999", b"-", b"abc", b"9" * 40])
def test_a_value_that_is_no_finite_number_is_left_out(tmp_path: Path, value: bytes) -> None:
    status = told(tmp_path, b"step 3/9 loss 2.5 acc %s\n" % value, PATTERN)
    assert status is not None
    assert (steps(status), status.metrics) == ((3, 9), {})


def test_a_log_is_read_on_from_where_the_last_look_ended(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    reader = LogProgressReader(path, r"step (?P<step>\d+)\b.*")
    assert reader.status() is None  # there is no log yet
    path.write_bytes(b"step 1\nste")
    assert steps(reader.status()) == (1, None)
    with path.open("ab") as log:
        log.write(b"p 25\n")
    assert steps(reader.status()) == (25, None)
    with path.open("ab") as log:
        log.write(b"x\n" * LOOK_BYTES + b"step 31\n")
    assert steps(reader.status()) == (31, None)
    assert steps(reader.status()) == (31, None)


def test_a_long_line_is_not_searched(tmp_path: Path) -> None:
    assert told(tmp_path, b"step 1 " + b"x" * LINE_BYTES + b"\n", r"step (?P<step>\d+)") is None


def test_a_pattern_that_kills_backtracking_engines_ends(tmp_path: Path) -> None:
    assert told(tmp_path, (b"a" * 4000 + b"\n") * 50, r"(?P<step>(a+)+)+$b") is None


TQDM = (
    b"\r  0%|          | 0/600 [00:00<?, ?it/s]"
    b"\r 45%|\xe2\x96\x88\xe2\x96\x88  | 270/600 [00:10<00:12, 27.50it/s, loss=0.25]"
)


def test_a_bar_of_tqdm_is_recognised_without_a_pattern(tmp_path: Path) -> None:
    status = told(tmp_path, b"hello\n" + TQDM)
    assert status is not None
    assert (steps(status), status.items_per_s, status.loss) == ((270, 600), 27.5, 0.25)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Epoch 2/10:  50%|##   | 50/100 [00:01<00:01, 50.00it/s]", (150, 1000)),
        (b"Epoch 2:  50%|##   | 50/100 [00:01<00:01, 50.00it/s, v_num=0]", (250, None)),
        (b"train epoch [1/2]:  50%|##   | 50/100 [00:01<00:01, 50.00it/s]", (50, 200)),
        (b"\x1b[32mtrain:\x1b[0m  50%|##   | 50/100 [00:01<00:01]", (50, 100)),
        (b"Map:  50%|##   | 50/100 [00:01<00:01, 50.00 examples/s]", None),
        (b"Downloading:  50%|##   | 50/100 [00:01<00:01, 50.00it/s]", None),
        (b"Validation DataLoader 0:  50%|##   | 50/100 [00:01<00:01, 50.00it/s]", None),
        (b"model.bin:  50%|##   | 50.0M/100M [00:01<00:01, 50.00MB/s]", None),
        (b"  0%|    | 0/0 [00:00<?, ?it/s]", None),
        (b"a | b | c 5/6", None),
    ],
)
def test_bars_of_epochs_count_on_and_other_bars_do_not_count(
    tmp_path: Path, line: bytes, expected: tuple[int, int | None] | None
) -> None:
    assert steps(told(tmp_path, b"\r" + line)) == expected


def test_a_shorter_bar_without_a_title_is_an_evaluation(tmp_path: Path) -> None:
    assert steps(told(tmp_path, TQDM + b"\r 50%|## | 5/10 [00:01<00:01, 5.00it/s]")) == (270, 600)


def test_lines_of_the_trainer_of_hugging_face_add_loss_and_metrics(tmp_path: Path) -> None:
    lines = b"\n{'loss': 2.5, 'grad_norm': '1.25', 'learning_rate': 4e-05, 'epoch': 0.5}\n"
    status = told(tmp_path, TQDM + lines)
    assert status is not None
    assert (steps(status), status.loss) == ((270, 600), 2.5)
    assert status.metrics == {"grad_norm": 1.25, "learning_rate": 4e-05, "epoch": 0.5}


def test_other_mappings_are_no_progress(tmp_path: Path) -> None:
    assert told(tmp_path, b"{'a': 1}\n{\"loss\": 3}\nit's: fine\n") is None


def test_a_log_that_is_no_file_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    assert LogProgressReader(tmp_path / "log.txt", None).status() is None
