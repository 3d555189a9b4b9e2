"""What facts about GPUs mean: a verdict, its reason in words, and what to do. Pure."""
