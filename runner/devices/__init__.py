"""The devices of this machine, live."""
