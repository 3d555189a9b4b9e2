"""The command line: `ddtree-engine serve | generate | check | inspect | train`."""
