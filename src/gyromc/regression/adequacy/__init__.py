"""Whether a fitted regression describes its data: tests of the model, not of the computation.

`residuals`, `dependence` and `links` look for structure that the columns leave, `laws` compare the observed responses with those
that the model predicts, `design` looks at the columns alone, `checks` combines the checks, so that a correct model is rarely
called wrong, and `assess` makes them all.
"""
