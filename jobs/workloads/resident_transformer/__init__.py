"""A transformer over candles of several time frames, whose batches stay in memory."""
