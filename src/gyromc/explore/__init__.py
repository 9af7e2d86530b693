"""The page of `gyromc explore`: its files, the data it shows, and the server that sends them."""
