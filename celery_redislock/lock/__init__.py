"""A lock that this process holds."""
