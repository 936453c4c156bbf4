"""The queue as the daemon holds it; what decides is ``runner.core.queue``."""
