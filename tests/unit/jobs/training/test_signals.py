"""A signal sets a flag and does nothing else."""

import os
import signal

from jobs.training.signals import listen


def test_signals_set_flags() -> None:
    requests = listen()
    assert (requests.stop, requests.save) == (False, False)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (requests.stop, requests.save) == (True, True)


def test_a_save_is_taken_once_and_a_stop_for_good() -> None:
    requests = listen()
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert [requests.take_save(), requests.take_save()] == [True, False]
    assert requests.stop
