"""``python -m bench``: measurements of the runner compared with other programs; not part of the wheel."""
