"""``python -m bench``: measurements of the runner beside other programs; not part of the wheel."""
