"""What one machine does for attempts: prepares, launches, probes and examines them, and knows its devices.

The control loop and the services call it; it knows neither of them.
"""
