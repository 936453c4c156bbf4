"""The callback for training frameworks; each module needs its framework, which no image includes."""
