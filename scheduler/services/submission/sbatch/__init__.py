"""The door for `sbatch` scripts: options, their values, and the job that they ask for."""
