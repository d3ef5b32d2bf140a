"""What policies do, in files."""
