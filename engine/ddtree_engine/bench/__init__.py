"""What a round costs, and of what: whole rounds and their stages against the floor of their GEMMs.

Models have a checkpoint's shapes and random weights, made on the device: time does not depend on
what weights say.
"""
