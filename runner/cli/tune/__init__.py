"""``runner tune``: try one setting of a job at a time, and keep what makes it faster."""
