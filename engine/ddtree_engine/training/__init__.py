"""Trains the bundled demo on the standard library: a small hybrid target and its DFlash drafter."""
