"""Learning against past selves."""
