"""The host's users, clock, mounts and run directories."""
