from pathlib import Path

import pytest

from jobs.contract import Phase, Status
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


TRAINED = b"Epoch 1/2: 100%|#####| 100/100 [25:00<00:00,  0.07it/s]\r"


@pytest.mark.parametrize(
    ("text", "left_s"),
    [
        (b"Validation:  84%|####| 5320/6291 [45:21<08:16,  1.96it/s]\r", (3217.0, 496.0)),
        (b"eval: 1%|#| 1/90 [1:00:00<2:00:01, 9s/it]\r", (10801.0, 7201.0)),
        (b"Validation: 0%|     | 0/6291 [00:00<?, ?it/s]\r", None),
        (b"Validation: 100%|####| 6291/6291 [53:37<00:00, 1.96it/s]\r", None),
        (
            b"Validation: 84%|##| 5320/6291 [45:21<08:16, 2it/s]\rEpoch 2/2: 1%|#| 1/100 [0:15<24:45]\r",
            None,
        ),
        (b"Loading: 84%|##| 5320/6291 [45:21<08:16, 2it/s]\r", None),
    ],
)
def test_the_rest_of_an_evaluation_is_told(
    tmp_path: Path, text: bytes, left_s: tuple[float, float] | None
) -> None:
    status = told(tmp_path, TRAINED + text)
    assert status is not None
    assert status.phase is (Phase.TRAIN if left_s is None else Phase.EVAL)
    assert (status.eval_s, status.eval_left_s) == (left_s or (None, None))
    assert status.step >= 100


def test_a_pattern_finds_the_steps_and_a_bar_tells_the_evaluation(tmp_path: Path) -> None:
    bar = b"Validation:  84%|####| 5320/6291 [45:21<08:16,  1.96it/s]\n"
    status = told(tmp_path, b"step 3/9\n" + bar, r"step (?P<step>\d+)")
    assert status is not None
    assert (status.step, status.phase, status.eval_left_s) == (3, Phase.EVAL, 496.0)
    after = told(tmp_path, b"step 3/9\n" + bar + b"step 4/9\n", r"step (?P<step>\d+)")
    assert after is not None
    assert (after.step, after.phase) == (4, Phase.TRAIN)


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
