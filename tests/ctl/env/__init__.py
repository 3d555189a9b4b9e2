"""Tests of environments, on packages with real shared objects."""
