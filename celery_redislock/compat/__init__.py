"""Base classes of other packages, on our locks: a project changes an import and nothing else."""
