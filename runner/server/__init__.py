"""The daemon as a process: composition root, socket, HTTP API.

It may import every package but `runner.cli`.
"""
