"""What a change to a job would bring, and making it."""
