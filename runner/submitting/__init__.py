"""From a job file as it was handed in to a revision that can be kept."""
