"""``runner doctor`` on the other host of ``scripts/hosts``."""

import subprocess
import sys

from tests.fakes.doctor_page import check


def test_doctor_says_on_debians_next_release_what_the_page_says() -> None:
    command = [sys.executable, "-P", "-m", "runner.cli.main", "doctor", "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    check("Debian's next release", done.stdout)
