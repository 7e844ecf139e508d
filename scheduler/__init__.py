"""When and where: jobs, nodes, queues, and the cycle that joins them."""
