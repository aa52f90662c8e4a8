"""Reports: read run folders, and nothing else."""
