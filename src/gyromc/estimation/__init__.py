"""What a finished run says: means, Monte Carlo errors, discretisation bias."""
