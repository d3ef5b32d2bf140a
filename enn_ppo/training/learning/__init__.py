"""Learning: networks, optimizer, statistics, further terms of the loss and other advantages."""
