"""Estimates poses from windows of inertial recordings that are streamed from disk."""
