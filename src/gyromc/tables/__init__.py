"""Regressions of tables: formula, encoding of columns, checks of the model, report. `gyromc.fit` is `tables.study.fit`."""
