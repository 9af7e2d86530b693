"""What can be learnt of a target without any dynamics: values, modes, curvature, samples around the mode."""
