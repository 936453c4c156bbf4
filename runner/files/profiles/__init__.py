"""Profiles: named sets of switches, their conflicts and their environment variables.

Imports no job files.
"""
