"""The process of a node that starts, stops and watches its tasks, and the guard of each task."""
