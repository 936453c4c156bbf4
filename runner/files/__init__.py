"""Files that people write (jobs, policies, profiles, settings), parsed into frozen values.

Imports no adapters,
control, services or server.
"""
