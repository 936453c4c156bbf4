"""Readers of the prepared data sets, one module for each file format; they do not depend on any workload."""
