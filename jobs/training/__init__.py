"""The training loop and its parts: steps, batches, device, phases and reports.

It imports the protocol of workloads, and no single workload.
"""
