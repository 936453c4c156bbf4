"""The training loop and its parts: steps, batches, device, phases and reports.

The package imports the workload protocol, but no particular workload.
"""
