"""Approximations of a target made without any dynamics: modes, Gaussians, weighted samples and their moments."""
