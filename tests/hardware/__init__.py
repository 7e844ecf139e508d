"""What can only be tried on machines that have it; run by hand, see CONTRIBUTING.md."""
