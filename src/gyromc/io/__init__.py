"""Files of gyromc: one codec for values, and archives, checkpoints, saved runs and models, and plan files on it.

`codec` turns frozen values into plain data and back, checked; `archive` is the file format; `functions` names the functions of
a user; `runs` lists the classes that plans and runs are made of, and saves and loads runs; `checkpoints` keeps those of a run.
Plan files in TOML (`kinds`, `planfiles`) are another spelling of a plan, for people.
"""
