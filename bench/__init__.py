"""Benchmarks of ddtreectl against other tools."""
