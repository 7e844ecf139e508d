"""Pages beside the submit form."""
