"""The worker's main process."""
