"""Downloads, verifies and converts the data sets that ``runner.files.datasets`` names."""
