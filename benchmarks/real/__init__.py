"""Real files and their models: where they come from, what is known of them, and posteriors computed without gyromc."""
