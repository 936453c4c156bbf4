"""Attempts as plain processes of the host, for machines without a container engine."""
