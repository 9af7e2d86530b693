"""`tune`: the plan with the smallest expected error for a budget, chosen by trials against the solver's unbiased answer."""
