"""Many environments' observations and actions as packed arrays."""
