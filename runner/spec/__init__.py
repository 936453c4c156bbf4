"""What a user may say about a job, and the way from a file to a value."""
