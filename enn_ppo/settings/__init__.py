"""What settings are made of."""
