"""Loads what workers of users need, for the processes that are forked afterwards."""

from runner.adapters.host import worker

worker.warm_up()
