"""Files of jobs that are stored beyond their node: brought there, listed, downloaded and removed."""
