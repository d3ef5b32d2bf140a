"""From the features of entities to tokens."""
