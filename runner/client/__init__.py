"""The HTTP client of the daemon: find it, start it, ask it. Imports ``runner.base`` alone."""
