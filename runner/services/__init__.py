"""Use cases of the daemon: submit, steer, look up, roll out, schedule, notify, monitor, simulate.

Services know the ports of the host and of the store, and import neither adapters nor the server.
"""
