"""From and to Gymnasium."""
