"""The engine's operations: each a package with ``naive.py`` as its specification."""
