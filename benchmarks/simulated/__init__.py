"""Data simulated from models: `ranks` of true parameters in their posteriors, `alarms` of the checks of right models, intervals.

`simulated_data.py` runs them by the hundred and writes docs/checked.md; the tests run a few of each.
"""
