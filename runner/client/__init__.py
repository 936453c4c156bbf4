"""The HTTP client of the daemon: find, start and query it. Imports only ``runner.base``."""
