"""ddtree-engine: exact draft-tree speculative decoding for hybrid recurrent/attention models."""

__version__ = "0.1.0"
