"""Machines: run a command with a deadline, read a file, put a file."""
