"""The engine's tensor operations, one package each.

`naive.py` is the specification in plain loops, meant to be read; the other modules compute the same
faster, and the package picks one of them. Tests hold every form against the naive one.
"""
