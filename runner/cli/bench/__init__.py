"""``runner bench``: measure one job under several profiles, with ordinary jobs of the daemon."""
