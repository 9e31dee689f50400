"""What belongs to an app and to its messages."""
