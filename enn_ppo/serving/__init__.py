"""The policy server: what it decides (`policy`), and whom it talks to (`server`)."""
