"""ddtreectl: deploy, swap, watch and roll back speculative-decoding services on bare GPU hosts."""

__version__ = "0.1.0"
