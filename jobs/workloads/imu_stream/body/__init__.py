"""Estimates the pose of a body from a few inertial sensors, with four networks that are trained in turn."""
