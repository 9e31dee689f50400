"""A locked task: how it is sent, what its deliveries do, and how they end."""
