"""Benchmarks: ddtreectl against other tools, and the engine's kernels one by one."""
