"""Forecasts of returns and volatility from daily graphs of correlated assets."""
