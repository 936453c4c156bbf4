"""What the measurements share: a daemon, statistics, tables, and results on the disk."""
