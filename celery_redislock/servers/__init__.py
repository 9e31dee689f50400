"""What carries an exchange: the drivers."""
