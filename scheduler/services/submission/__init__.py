"""From a request, a form or a script to rows of jobs."""
