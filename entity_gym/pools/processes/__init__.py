"""A pool whose environments run in worker processes."""
