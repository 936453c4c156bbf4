"""The helper of a daemon that has given up root: its requests, and both ends of the connection."""
