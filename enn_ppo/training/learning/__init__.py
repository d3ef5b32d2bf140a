"""Learning: networks, optimizer, statistics, auxiliary losses, n-step returns and V-trace."""
