"""The life cycle of a job: its states, events, commands and the transition function.

It imports ``policy`` and nothing above it.
"""
