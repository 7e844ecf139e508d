"""The folders of tasks: given to a task, taken back, and emptied of what a job has left."""
