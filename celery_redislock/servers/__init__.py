"""The drivers, which carry calls to lock servers."""
