"""Attempts as containers of a Docker engine; nothing else in ``runner`` imports the Docker SDK."""
