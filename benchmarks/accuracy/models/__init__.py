"""The posteriors of the race in seconds, by subject; `accuracy.posteriors` lists them."""
