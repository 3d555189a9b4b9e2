"""Environments: immutable virtual environments, named by what is in them and what they fit."""
