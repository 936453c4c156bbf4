import json
import math
import time
from pathlib import Path

import pytest

from jobs.contract import Phase, Status
from runner.adapters.host.log_progress import LINE_BYTES, LOOK_BYTES, LogProgressReader


def told(tmp_path: Path, text: bytes, pattern: str | None = None) -> Status | None:
    path = tmp_path / "log.txt"
    path.write_bytes(text)
    return LogProgressReader(path, pattern).status()


def steps(status: Status | None) -> tuple[int | None, int | None] | None:
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


def test_a_count_may_have_commas_and_in_another_number_they_may_be_decimal(tmp_path: Path) -> None:
    pattern = r"step (?P<step>[\d,]+)/(?P<total>[\d,]+) loss (?P<loss>[\d,.]+)"
    status = told(tmp_path, b"step 12,000/1,250,000 loss 2,345\n", pattern)
    assert status is not None
    assert (steps(status), status.loss) == ((12_000, 1_250_000), None)
    assert steps(told(tmp_path, b"step 12,00/1,000 loss 2\n", pattern)) == (None, 1000)


DOCUMENTED = r"step (?P<step>\d+).*loss (?P<loss>[\d.]+)"
LOST = [b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"-nan"]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        (b"step %d/30 loss %s\n", None),
        (b"step %d/30 loss %s%%\n", None),
        (b"step %d/30 loss %s\n", DOCUMENTED),
        (b"step %d/30 loss %s%%\n", DOCUMENTED),
        (b"step %d/30 loss %s\n", r"step (?P<step>\d+)/\d+(?: loss (?P<loss>\d+\.\d+))?"),
        (b"step %d/30 loss %s\n", r"step (?P<step>\d+).*loss (?P<loss>\S+)"),
        (b"step %d/30 loss %s%%\n", r"step (?P<step>\d+).*loss (?P<loss>\S+)"),
        (b"\r 45%%|##   | %d/30 [00:10<00:12, 27.50it/s, loss=%s]", None),
        (b"iter %d: loss %s, time 20.00ms, mfu 1.00%%\n", None),
        (b"%d/30 [====>.....] - ETA: 5s - loss: %s\n", None),
    ],
    ids=["words", "words-%", "digits", "digits-%", "optional", "text", "text-%", "tqdm", "nanogpt", "keras"],
)
def test_a_loss_that_is_not_finite_takes_the_place_of_the_last_and_the_step_goes_on(
    tmp_path: Path, line: bytes, pattern: str | None, lost: bytes
) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(line % (5, b"0.001") + line % (6, lost))
    reader = LogProgressReader(path, pattern)
    status = reader.status()
    assert status is not None
    assert (status.step, status.loss) == (6, None)
    assert json.loads(status.model_dump_json())["loss"] is None
    told = [(step, numbers["loss"]) for _, step, numbers in reader.numbers(ended=True)]
    assert told[0] == (5, 0.001)
    assert (told[1][0], math.isfinite(told[1][1])) == (6, False)


@pytest.mark.parametrize("lost", [b"nan", b"'nan'", b"inf", b"nan.0"])
def test_a_loss_of_the_trainer_that_is_not_finite_takes_the_place_of_the_last(
    tmp_path: Path, lost: bytes
) -> None:
    lines = b"{'loss': 0.5, 'epoch': 0.5}\n{'loss': %s, 'grad_norm': nan, 'epoch': 0.75}\n" % lost
    status = told(tmp_path, lines)
    assert status is not None
    assert (status.loss, status.metrics) == (None, {"epoch": 0.75})


def test_a_log_without_steps_tells_none(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"{'loss': 0.5, 'epoch': 0.37}\n{'loss': 0.25, 'epoch': 0.74}\n")
    reader = LogProgressReader(path, None)
    status = reader.status()
    assert (steps(status), status and status.loss) == ((None, None), 0.25)
    assert [told[1:] for told in reader.numbers(ended=False)] == [
        (None, {"loss": 0.5, "epoch": 0.37}),
        (None, {"loss": 0.25, "epoch": 0.74}),
    ]


@pytest.mark.parametrize(
    "line", [b"step 6 loss info\n", b"step 6 loss nano\n", b"step 6 loss: nan_count 3\n"]
)
def test_a_word_that_begins_as_nan_is_no_value(tmp_path: Path, line: bytes) -> None:
    status = told(tmp_path, b"step 5 loss 0.5\n" + line)
    assert status is not None
    assert status.loss == 0.5


def test_a_count_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    status = told(tmp_path, b"step 3 of 9\nstep nan of inf\n", r"step (?P<step>\S+) of (?P<total>\S+)")
    assert steps(status) == (3, 9)


def test_every_line_tells_its_numbers_once_and_a_part_of_a_line_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    reader = LogProgressReader(path, DOCUMENTED)

    def numbers(text: bytes, *, ended: bool = False) -> list[tuple[int | None, float]]:
        with path.open("ab") as log:
            log.write(text)
        return [(step, told["loss"]) for _, step, told in reader.numbers(ended=ended)]

    assert numbers(b"step 1 loss 0.9\nstep 2 loss 0.8\nstep 3 loss 0.") == [(1, 0.9), (2, 0.8)]
    reader.status()
    assert numbers(b"7\n") == [(3, 0.7)]
    assert numbers(b"step 4 loss 0.6") == []
    assert numbers(b"", ended=True) == [(4, 0.6)]


def test_the_times_of_the_lines_of_one_look_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"".join(b"step %d loss 0.5\n" % step for step in range(100)))
    times = [at for at, *_ in LogProgressReader(path, None).numbers(ended=True)]
    assert len(set(times)) == 100
    assert times == sorted(times)


def test_the_line_in_which_a_look_begins_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    line = b"step 1234567 loss 0.5\n"
    path.write_bytes(line)
    reader = LogProgressReader(path, r"(?P<step>\d+) loss (?P<loss>\S+)")
    reader.status()
    path.write_bytes(line * (LOOK_BYTES // len(line) + 9))
    told = reader.numbers(ended=True)
    assert {step for _, step, _ in told} == {1234567}
    assert len(told) > 1000


def test_of_a_log_that_is_read_from_its_middle_on_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    bar = b"%d/900 [====>.....] - ETA: 5s - loss: 0.5\n"
    lines = [bar % step for step in range(1, 900)]
    path.write_bytes(b"".join([b"Epoch 3/9\n", b"x\n" * LOOK_BYTES, *lines, b"Epoch 4/9\n", *lines[:9]]))
    assert [step for _, step, _ in LogProgressReader(path, None).numbers(ended=True)] == [2709]


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


@pytest.mark.parametrize(
    ("line", "expected", "rate"),
    [
        (b" 10%|## | 1.20k/12.0k [00:10<01:30, 120it/s, loss=0.5]", (1200, 12000), 120.0),
        (b"  0%|   | 5.00/12.0k [00:10<01:30, 1.23kit/s]", (5, 12000), 1230.0),
        (b"  0%|   | 12.0/12.0k [00:10<01:30, 12.3 ex/s]", (12, 12000), 12.3),
        (b" 10%|#  | 300k/3.00M [00:10<75000:00:00, 100s/it]", (300_000, 3_000_000), 0.01),
        (b" 10%|## | 1/10 [00:10<00:13,  1.50s/it]", (1, 10), 1 / 1.5),
        (b" 10%|## | 1/10 [00:10<00:13, 10.00s/step]", (1, 10), 0.1),
        (b" 10%|## | 1/10 [00:10<00:13, 1234.50Mails/s]", (1, 10), 1234.5),
        (b" 10%|## | 1/10 [00:10<?, ?it/s]", (1, 10), None),
    ],
)
def test_bars_tell_thousands_and_seconds_for_each(
    tmp_path: Path, line: bytes, expected: tuple[int, int], rate: float | None
) -> None:
    status = told(tmp_path, b"\r" + line)
    assert (steps(status), status and status.items_per_s) == (expected, rate and pytest.approx(rate))


KERAS_3 = (
    b"Epoch 2/5\n"
    b"\x1b[1m   1/1875\x1b[0m \x1b[37m" + b"\xe2\x94\x81" * 20 + b"\x1b[0m \x1b[1m5:46\x1b[0m 185ms/step"
    b" - accuracy: 0.1250 - loss: 2.3458" + b"\x08" * 100 + b"\r"
    b"\x1b[1m 375/1875\x1b[0m \x1b[32m" + b"\xe2\x94\x81" * 4 + b"\x1b[0m\x1b[37m" + b"\xe2\x94\x81" * 16
    + b"\x1b[0m \x1b[1m12s\x1b[0m 8ms/step - accuracy: 0.8123 - loss: 6.5000e-01"
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected", "loss", "rate"),
    [
        (KERAS_3, (2250, 9375), 0.65, 125.0),
        (b"Epoch 1/2\n 345/1875 [====>.......] - ETA: 2s - loss: 0.6", (345, 3750), 0.6, None),
        (
            b"Epoch 2/2\n1875/1875 [======] - 3s 2ms/step - loss: 0.5 - accuracy: 0.8\n",
            (3750, 3750), 0.5, 500.0,
        ),
        (b"Epoch 1/2\n100/100 - 3s - 25ms/step - accuracy: 0.9 - loss: 0.2\n", (100, 200), 0.2, 40.0),
        (
            b"Epoch 1/1\n100/100 - 3s - 25ms/step - loss: 0.2\n 5/20 \xe2\x94\x81 1s 10ms/step - loss: 9.0",
            (100, 100), 0.2, 40.0,
        ),
        (b"iter 100: loss 2.5000, time 12.50ms, mfu 3.21%\n", (100, None), 2.5, 80.0),
        (b"iter 90: loss 2.5, time 12.5ms\nstep 100: train loss 2.1, val loss 2.2\n", (100, None), 2.5, 80.0),
        (b"Train Epoch: 2 [640/60000 (1%)]\tLoss: 0.125000\n", (60640, None), 0.125, None),
        (
            b"| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.50 | loss  7.63 | ppl  2058.90\n",
            (200, None), 7.63, 80.0,
        ),
        (b"Batch 100/250, Loss: 4.5000\n", (100, 250), 4.5, None),
        (
            b"Epoch 2/10 (seq=128, batch=36)\nBatch 200/250, Loss: 3.2500, GPU: 1.20GB alloc\n",
            (450, 2500), 3.25, None,
        ),
    ],
)  # fmt: skip
def test_the_lines_of_keras_and_of_widely_copied_scripts_are_recognised(
    tmp_path: Path, text: bytes, expected: tuple[int, int | None], loss: float, rate: float | None
) -> None:
    status = told(tmp_path, text)
    assert status is not None
    assert (steps(status), status.loss) == (expected, loss)
    assert status.items_per_s == (rate and pytest.approx(rate))


EARLY = "━━━━━━━━━━╺━━━━━━━".encode()


@pytest.mark.parametrize(
    ("line", "expected", "loss"),
    [
        (b"step 120: loss 2.5", (120, None), 2.5),
        (b"step 120/600 | loss 2.5 (+0.1z)| norm 1.2", (120, 600), 2.5),
        (b"Epoch [2/10], Step [120/600], Loss: 2.5", (720, 6000), 2.5),
        (b"INFO - step: 1200  loss:  2.5  grad_norm:  1.2  tps: 4,012", (1200, None), 2.5),
        (b" iteration      120/   50000 | lr: 1e-4 | lm loss: 2.5E+00 | grad norm: 1.0 |", (120, 50000), 2.5),
        (
            b"[11/27 10:00:00 d2.events]:  eta: 1:02:03  iter: 1200  total_loss: 2.5  time: 0.3",
            (1200, None),
            2.5,
        ),
        (b"Epoch: [2][ 120/5000]\tTime  0.312 ( 0.320)\tLoss 2.5e+00 (5.4e+00)", (10120, None), 2.5),
        (b"Epoch: [2]  [ 120/5000]  eta: 0:40:10  lr: 0.1  loss: 2.5 (6.5)", (10120, None), 2.5),
        (b"mmengine - INFO - Epoch(train)  [2][ 50/196]  lr: 1.0e-01  loss: 2.5", (246, None), 2.5),
        (b"mmengine - INFO - Iter(train) [  500/80000]  lr: 1.0e-02  loss: 2.5", (500, 80000), 2.5),
        (b"Train: 2 [ 120/5000 (  2%)]  Loss: 2.5 (5.4)  Time: 0.3s", (10120, None), 2.5),
        (b"[120]\ttrain-rmse:0.41\teval-rmse:0.52", (120, None), None),
        (b"120:\tlearn: 0.41\ttest: 0.5\ttotal: 1.2s", (120, None), None),
        (b"Training: 1250it [02:10,  9.6it/s, loss=2.5]", (1250, None), 2.5),
        (
            b"Epoch 2/9 " + EARLY + b" 52/100 0:00:10 \xe2\x80\xa2 0:00:11 5.01it/s v_num: 0 loss: 2.5",
            (252, 1000),
            2.5,
        ),
        (b"Working " + EARLY + b" 40/100 0:00:12", (40, 100), None),
        (b"  2/100  2.31G  1.312  640:  50%|##   | 50/100 [00:10<00:10,  5.0it/s]", (150, 10000), None),
        (b" 10%|#  | 12/120 [00:04<00:40, 2.1it/s, lr=1e-4, step_loss=2.5]", (12, 120), 2.5),
    ],
)
def test_lines_of_frameworks_and_of_ones_own_loop_are_recognised(
    tmp_path: Path, line: bytes, expected: tuple[int, int | None], loss: float | None
) -> None:
    status = told(tmp_path, line + b"\n")
    assert status is not None
    assert (steps(status), status.loss) == (expected, loss)


@pytest.mark.parametrize(
    "line",
    [
        b"val step 3/10: loss 2.5",
        b"Epoch 3 | Step 12 | loss 2.5",  # nobody knows whether it is a step of the epoch
        b"first step: loss 2.5",
        b"step 1.5 of 3: loss 2",
        b"step 3 done",
        b"loss 2.5",
        b"Downloading: 12it [00:01, 9it/s]",
        b"Evaluating " + EARLY + b" 40/100 0:00:12",
        b"Epoch(val)  [2][ 50/196]  loss: 2.5",
    ],
)
def test_words_that_do_not_tell_the_step_of_the_training_tell_nothing(tmp_path: Path, line: bytes) -> None:
    assert told(tmp_path, line + b"\n") is None


def test_words_beside_a_bar_do_not_count(tmp_path: Path) -> None:
    bar = b"\r 10%|#  | 12/120 [00:04<00:40, 2.1it/s]\n"
    assert steps(told(tmp_path, bar + b"step 3: loss 2.5\n")) == (12, 120)


@pytest.mark.parametrize(
    "line", [b"1/2 - 3s of work", b"iter 5: done", b"Epoch 1/2", b"12/31 Thursday", b"3/4 cups - loss: 1"]
)
def test_lines_that_only_look_like_progress_tell_nothing(tmp_path: Path, line: bytes) -> None:
    assert told(tmp_path, line + b"\n") is None


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
    assert (status.step or 0) >= 100


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


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (b"\rVal: 10%|# | 1/9 [00:01<00:09, 1it/s] Epoch 1/2:  50%|## | 5/10 [00:05<00:05, 1it/s]", 5),
        (b"\r" + b"x" * 300 + b" 50%|## | 5/10 [00:05<00:05, 1it/s]", 5),
        (b"\r7% of it | Valid: 50%|## | 5/10 [00:05<00:05, 1it/s]", None),
        (b"\rEpoch 2/2:100%|##| 10/10 [00:05<00:00, 1it/s]", 20),
    ],
    ids=["two-bars", "long-title", "behind-other-text", "no-blank"],
)
def test_the_title_of_a_bar_is_what_stands_between_it_and_the_text_before(
    tmp_path: Path, text: bytes, step: int | None
) -> None:
    status = told(tmp_path, text)
    assert (status.step if status else None) == step


@pytest.mark.parametrize(
    "line",
    [
        *(b"a" * 4000 + b"|", b"1%||" + b"1" * 4000, b"1%||1/1 [x" * 400, b"step" + b" " * 4000 + b"loss"),
        *(b" step 1" * 500 + b" loss", b" loss 1" * 500, b"Epoch [1" * 500 + b" loss 1", EARLY * 70),
    ],
)
def test_no_text_costs_much_more_than_its_length(tmp_path: Path, line: bytes) -> None:
    harmless = cost(tmp_path, b"a" * LINE_BYTES)
    assert cost(tmp_path, line) < 20 * harmless


def cost(tmp_path: Path, line: bytes) -> float:
    """Return the processor time of a look at a log of such lines."""
    text = (line + b"\n") * (LOOK_BYTES // len(line))
    found = []
    for _ in range(5):
        began = time.thread_time()
        told(tmp_path, text)
        found.append(time.thread_time() - began)
    return min(found)
