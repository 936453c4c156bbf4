"""Usage reports: who has used how much of the devices and CPUs.  It imports nothing of the core."""
