"""The policy server: choosing actions (`policy`), and connections (`server`)."""
