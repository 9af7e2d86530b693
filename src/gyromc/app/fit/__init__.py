"""`gyromc fit`: a data file in, coefficients, predictions, scores and a report out."""
