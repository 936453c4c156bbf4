"""One command that measures on a real GPU what this project states about GPUs.

``scripts/gpu-report`` needs no network and no installation; see ``docs/operate/gpu-report.md``.
Each part is a module here.  It runs in its own process with its own time limit, so that a hang or a
crash of one part does not lose the results of the others.
"""
