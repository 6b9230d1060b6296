"""Command line: parsing and dispatch only."""
