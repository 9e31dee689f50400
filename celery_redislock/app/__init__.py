"""What belongs to an app and to a message of it."""
