"""Policy files: reading them, checking them, explaining them, and finding the one of a job."""
