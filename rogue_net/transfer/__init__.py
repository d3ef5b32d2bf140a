"""Networks in other spaces."""
