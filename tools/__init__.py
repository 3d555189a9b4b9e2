"""Commands for people who work on this repository."""
