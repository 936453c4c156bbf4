"""``runner bench``: measure one job under several profiles, through the daemon like any job."""
