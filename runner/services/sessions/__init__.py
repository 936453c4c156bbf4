"""Sessions inside of running jobs: commands, terminals and forwarded ports.

Every session is an event of its job, with who began it and when.
"""
