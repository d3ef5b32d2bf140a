"""Networks in other spaces, and of the ancestor rogue-net."""
