"""What the fleet should be: strict models of the inventory and their loader."""
