"""For operators: the commands, and what they look at."""
