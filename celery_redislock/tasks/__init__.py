"""A locked task where it runs."""
