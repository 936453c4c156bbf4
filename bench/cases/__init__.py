"""One module per measurement; each yields lines with a ratio and an aim."""
