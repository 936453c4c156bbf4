"""The shared server's queue: ``plan(snapshot)`` says who starts, who gives way, and why the others wait.

Pure: no clock, no input or output, no settings but those in the snapshot.
"""
