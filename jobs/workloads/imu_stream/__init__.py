"""Poses from windows of inertial recordings, which are streamed from disk."""
