"""Shared parts of the measurements: a daemon, statistics, tables, and result files."""
