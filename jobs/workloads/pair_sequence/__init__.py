"""Pairs of texts in one sequence, answered in a word of a vocabulary by a small or a pretrained model."""
