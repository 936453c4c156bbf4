"""The trainings whose end is estimated are examples as they are shipped, with another length."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.estimates import TRAININGS, job_files
from bench.support.scratch import Effort
from runner.files.job.load import parse_job

WHOLE = Effort()


@pytest.mark.parametrize("effort", [WHOLE, replace(WHOLE, turn_share=0.01)])
def test_every_training_is_a_valid_job_of_the_length_that_it_should_have(effort: Effort) -> None:
    made = job_files(effort)
    assert made.keys() == TRAININGS.keys()
    for name, text in made.items():
        read = parse_job(text.encode(), Path(f"{name}.yaml")).workload.model_dump()
        expected = {unit: max(1, int(number * effort.turn_share)) for unit, number in TRAININGS[name].items()}
        assert {unit: read[unit] for unit in expected} == expected
