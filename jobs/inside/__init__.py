"""Programs that the runner starts inside of a running job, from a copy of their file.

They stand alone: the standard library of any Python from 3.7 on, no import of this package, because the
image of a job may not have it.
"""
