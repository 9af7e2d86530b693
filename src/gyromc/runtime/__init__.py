"""What all parts compute with: memory and threads, both precisions, functions of many rows."""
