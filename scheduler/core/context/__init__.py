"""What all steps of a cycle share: the cycle context and the running jobs as they could be removed."""
