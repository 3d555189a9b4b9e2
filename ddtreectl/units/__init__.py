"""Units: their text, the rules that it is escaped by, its check, and the commands that run them."""
