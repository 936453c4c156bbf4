"""A transformer over candles of several timeframes, whose batches stay in memory."""
