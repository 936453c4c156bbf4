"""A plug-in of the runner: each module is one entry point of ``pyproject.toml``."""
