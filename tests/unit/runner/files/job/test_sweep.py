from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.files.job.load import LoadedFile, parse_jobs
from runner.files.job.model import checkpoint_plan
from runner.files.written import find_place

HEAD = "name: rate\nworkload: {kind: causal_lm, data: stdlib, steps: 100}\n"
DRAWN = """sweep:
  parameters:
    workload.learning_rate: {log_uniform: [0.0001, 0.01]}
    workload.dropout: {uniform: [0, 0.5]}
    environment.N: {integers: [2, 4]}
    seed: [1, 2]
  candidates: 40
  metric: eval_loss
"""
GRID = "sweep: {parameters: {seed: [1, 2], workload.layers: [1, 2, 3]}, metric: loss}\n"


def read(text: str) -> LoadedFile:
    return parse_jobs((HEAD + text).encode(), Path("rate.yaml"))


def problems(text: str) -> list[str]:
    with pytest.raises(FileError) as told:
        read(text)
    return [f"{each.field}: {each.fact}" for each in told.value.problems]


def test_a_grid_has_every_combination_and_its_jobs_know_the_sweep() -> None:
    found = read(GRID)
    assert [job.name for job in found.jobs] == [f"rate-{number}" for number in range(1, 7)]
    assert [job.seed for job in found.jobs] == [1, 1, 1, 2, 2, 2]
    assert found.jobs[3].labels == {"seed": "2", "workload.layers": "1"}
    assert all(job.sweep == found.group for job in found.jobs)


def test_draws_lie_in_their_ranges_and_the_seed_decides_them() -> None:
    found = read(DRAWN)
    rates = [float(each["workload.learning_rate"]) for each in found.values]
    assert all(0.0001 <= rate <= 0.01 for rate in rates)
    assert sum(rate < 0.001 for rate in rates) > 10  # half of them, of the logarithms
    assert {str(each["environment.N"]) for each in found.values} == {"2", "3", "4"}
    assert found.jobs[0].environment["N"] == str(found.values[0]["environment.N"])
    assert found.values == read(DRAWN).values
    assert found.values != read(DRAWN + "  seed: 1\n").values
    assert found.values[:5] == read(DRAWN.replace("40", "5")).values


def test_listed_values_arrive_as_they_are_typed_and_stay_numbers_for_comparison() -> None:
    sweep = "sweep: {parameters: {environment.V: [1.10, 1e-3, 012]}, metric: loss}\n"
    program = "workload: {kind: program, command: [a]}\n"
    found = parse_jobs(f"{program}{sweep}".encode(), Path("rate.yaml"))
    typed = ["1.10", "1e-3", "012"]
    assert [job.environment["V"] for job in found.jobs] == typed
    assert [job.labels["environment.V"] for job in found.jobs] == typed
    assert [each["environment.V"] for each in found.values] == [1.1, 0.001, 12]


def test_a_switch_is_labelled_as_it_is_typed() -> None:
    found = read("sweep: {parameters: {checkpoint.on_stop: [true, false]}, metric: loss}\n")
    assert [job.labels["checkpoint.on_stop"] for job in found.jobs] == ["true", "false"]


def test_no_candidate_is_drawn_twice_as_long_as_there_are_others() -> None:
    values = read(GRID.replace("metric", "candidates: 6, metric")).values
    assert len(set(map(str, values))) == 6
    narrow = DRAWN.replace("[0.0001, 0.01]", "[0.1, 0.1000001]").replace("[0, 0.5]", "[0.1, 0.1000001]")
    assert len(read(narrow.replace("[2, 4]", "[1, 1]")).values) == 40


def test_rungs_are_pauses_of_the_training() -> None:
    [first, *_] = read(GRID.replace("loss}", "loss, stop: {rungs: [10, 30]}}")).jobs
    assert checkpoint_plan(first, 60.0).pauses == (10, 30)
    assert "pauses" not in checkpoint_plan(read("").jobs[0], 60.0).model_dump()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (DRAWN.replace("  candidates: 40\n", ""), "is drawn, so say how many: sweep.candidates"),
        (DRAWN.replace("0.0001", "0"), "must begin above 0, because its logarithm is drawn"),
        (DRAWN.replace("0.0001", "0.1"), "must be [least, most], two numbers with the smaller one first"),
        (DRAWN.replace("{uniform: [0, 0.5]}", "{}"), "exactly one of uniform, log_uniform and integers"),
        (DRAWN.replace("[2, 4]", "[4, 2]"), "integers must be [least, most], with the smaller one first"),
        (DRAWN.replace("seed: [1, 2]", "seed: []"), "has no values; add some or remove the field"),
        (DRAWN.replace("    seed:", "    name:"), "cannot be varied; each job gets the file's name"),
        (DRAWN.replace("    seed:", "    workload:"), 'is part of "workload", which is varied too'),
        (DRAWN + "  stop: {rungs: [10, 100]}\n", "100 is not before the last step, 100; remove it"),
        (DRAWN + "  stop: {rungs: [10, 10]}\n", "must rise from step to step, without a repetition"),
        (
            DRAWN.replace("eval_loss", "perplexity") + "  stop: {rungs: [9]}\n",
            "9 is before the first evaluation, at step 50",
        ),
        (DRAWN + "  stop: {rungs: [9]}\n", "9 is before the first evaluation, at step 50"),
        (DRAWN + "  stop: {rungs: [9]}\ncheckpoint: {on_stop: false}\n", "remove checkpoint.on_stop: false"),
        (DRAWN + "matrix: {values: {priority: [1]}}\n", "matrix: cannot be combined with a sweep"),
        (DRAWN + "schedule: {cron: '@daily'}\n", "schedule: cannot be combined with a sweep"),
        (
            GRID.replace("metric", "candidates: 7, metric"),
            "asks for 7, and there are 6 combinations; remove it to run each once",
        ),
        (
            GRID.replace("[1, 2, 3]", "{integers: [2, 4]}").replace("metric", "candidates: 7, metric"),
            "asks for 7, and there are 6 combinations; say 6 or fewer",
        ),
        (GRID.replace("[1, 2, 3]", str(list(range(1, 502)))), "makes 1002 jobs, and the limit is 1000"),
    ],
)
def test_what_contradicts_itself_is_told_at_its_field(text: str, told: str) -> None:
    found = problems(text)
    assert any(told in each for each in found), found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GRID.replace("metric: loss", "metric: los"), 'never reports "los"; did you mean "loss"?'),
        (
            GRID.replace("metric: loss", "metric: f1"),
            '"f1"; it reports eval_loss, perplexity, bits_per_byte,',
        ),
        (
            GRID.replace("metric: loss", "metric: perplexty"),
            'sweep.metric: causal_lm never reports "perplexty"; did you mean "perplexity"?',
        ),
        (
            "workload: {kind: causal_lm, data: stdlib, early_stopping: {metric: los, better: lower}}",
            'workload.early_stopping.metric: causal_lm never reports "los"; it reports eval_loss, ',
        ),
        (
            "workload: {kind: causal_lm, data: stdlib, lr_plateau: {metric: loss, better: lower}}",
            'workload.lr_plateau.metric: causal_lm never reports "loss"; did you mean "eval_loss"?',
        ),
    ],
)
def test_a_metric_that_a_built_in_workload_never_reports_is_told_at_its_field(text: str, told: str) -> None:
    head = "" if "workload: {" in text else HEAD
    with pytest.raises(FileError) as found:
        parse_jobs((head + text).encode(), Path("rate.yaml"))
    assert told in f"{found.value.problems[0].field}: {found.value.problems[0].fact}"


@pytest.mark.parametrize("metric", ["eval_loss", "perplexity", "memory_bytes", "part_data"])
def test_what_is_reported_or_measured_of_a_built_in_workload_can_compare_its_candidates(metric: str) -> None:
    assert len(read(GRID.replace("metric: loss", f"metric: {metric}")).jobs) == 6


def test_a_program_reports_what_nobody_knows_before() -> None:
    text = "name: own\nworkload: {kind: program, command: [train]}\n" + GRID
    text = text.replace("workload.layers: [1, 2, 3]", "priority: [1, 2]").replace(
        "metric: loss", "metric: f1"
    )
    assert len(parse_jobs(text.encode(), Path("own.yaml")).jobs) == 4


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("{log_unifrm: [1, 2]}", '.log_unifrm: unknown field; did you mean "log_uniform"?'),
        ("{values: [1, 2]}", ".values: unknown field; there are uniform, log_uniform, integers"),
        ("{log_uniform: [0, 2]}", ".log_uniform: must begin above 0, because its logarithm is drawn"),
        ("{log_uniform: [a, 2]}", '.log_uniform[0]: must be a number, not "a"'),
        ("{uniform: [1]}", ".uniform[1]: is required"),
        ("{uniform: [1, 2, 3]}", ".uniform: has more than 2 entries; remove some"),
        ("{integers: [1.5, 2]}", ".integers[0]: must be a whole number, not 1.5"),
        ("{}", ": needs exactly one of uniform, log_uniform and integers"),
        ("0.1", ": must be a list or a mapping, not 0.1"),
        ("[[1]]", "[0]: must be true or false or a whole number or a number or text, not a list"),
    ],
)
def test_a_parameter_is_a_list_or_a_mapping_and_told_as_the_one_that_it_is(said: str, told: str) -> None:
    text = DRAWN.replace("{log_uniform: [0.0001, 0.01]}", said)
    assert problems(text) == [f'sweep.parameters."workload.learning_rate"{told}']


def test_evaluations_that_are_off_decide_nothing() -> None:
    with pytest.raises(
        FileError, match=r"sweep\.metric: is of evaluations, and workload\.eval_every is null"
    ):
        parse_jobs((HEAD.replace("steps", "eval_every: null, steps") + DRAWN).encode(), Path("rate.yaml"))


def test_numbers_that_are_drawn_for_a_whole_number_are_told_once() -> None:
    [told] = problems(DRAWN.replace("workload.dropout", "workload.layers").replace("[0, 0.5]", "[1, 3]"))
    assert told.startswith("workload.layers: must be a whole number from 1 to 128, not ")


def test_a_value_that_a_field_refuses_is_told_where_it_is_drawn() -> None:
    text = DRAWN.replace("[0, 0.5]", "[2, 3]")
    with pytest.raises(FileError, match=r"rate\.yaml:6:\d+: workload\.dropout"):
        read(text)
    place = find_place((HEAD + DRAWN).encode(), 1, ("workload", "dropout"))
    assert place is not None
    assert place.line == 6
