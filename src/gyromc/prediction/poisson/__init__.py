"""The Poisson equation: Galerkin on separable targets, the plug-in on a sample."""
