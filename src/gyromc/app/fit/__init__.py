"""`gyromc fit`: from a data file to coefficients, predictions, scores and a report."""
