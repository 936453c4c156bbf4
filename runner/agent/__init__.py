"""Work of one machine for attempts: prepare, launch, probe and examine them, and know its devices.

The control loop and the services call it; it knows neither of them.
"""
