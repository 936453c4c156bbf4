"""Attempts as batch jobs of a Slurm cluster, by its command line."""
