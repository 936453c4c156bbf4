"""The job file: its models, parsing, shorthands, matrix, paths and JSON Schema.

Imports no policies or settings.
"""
