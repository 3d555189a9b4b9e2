"""The recurrence along an accepted path, from keys and values: the last step of `gdn_commit`.

`naive` is the specification, `vectorized` the form with PyTorch. On a GPU, `gdn_commit` does it in
its own kernel.
"""
