"""Statistics of averages over chains: their variance, standard error, interval and agreement. Everything here takes arrays."""
