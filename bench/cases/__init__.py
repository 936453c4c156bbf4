"""One module for each measurement; each yields lines with a ratio and an aim."""
