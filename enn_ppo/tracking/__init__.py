"""What a run tells, and where it goes."""
