"""The slow work around an attempt: preparing its launch, probing its progress, examining its end.

It knows the run directory and the images through ports, and imports no adapter.
"""
