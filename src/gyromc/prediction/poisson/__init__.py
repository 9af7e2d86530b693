"""The Poisson equation: Galerkin for separable targets, the plug-in estimate from a sample."""
