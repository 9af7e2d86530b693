"""The command line and what it needs: plan files, fitting a file, the paper's commands. No mathematics."""
