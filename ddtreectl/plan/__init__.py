"""From desired state and facts to ordered steps. Pure: the same plan is printed or applied."""
