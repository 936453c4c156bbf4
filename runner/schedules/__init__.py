"""Jobs that are submitted when their time has come."""
