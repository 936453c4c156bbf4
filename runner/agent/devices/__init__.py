"""The devices of this machine: what they are, how they are, and whom they are allocated to."""
