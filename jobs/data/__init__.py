"""Readers of the prepared data sets, one module for each kind of file.  They know no workload."""
