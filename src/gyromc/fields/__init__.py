"""Zero-mean functions of a target: vector fields, the regression of observables on them, and the checks that they allow."""
