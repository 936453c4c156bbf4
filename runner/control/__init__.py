"""The control loop: it observes attempts, advances jobs, records transitions and executes commands.

It imports `runner.agent`, `runner.core` and `runner.base` alone, and uses the ports in `runner.core.ports`.
"""
