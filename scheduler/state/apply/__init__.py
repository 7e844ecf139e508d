"""A plan written to the database: each kind of decision in a module of its own, and what is refused as data.

`apply_plan` calls these modules in order, inside one transaction:

1. `apply_starts`: attempts, tasks, allocations and counters of jobs that start.
2. `apply_resizes` and `apply_preemption`: running jobs that give up tasks, end or are suspended
   (`apply_suspension`) for others. For one pending job all of these are written, or none.
3. `apply_gang_reservations`: nodes that gangs begin to gather, and those that they release.

Each has `check` (what is refused now, with the reason) and `write` (the rows). Where one statement compares and
writes, there is only `write`, which answers what it refused.

Beside the plan's transaction, each in a transaction of its own: `apply_suspension.apply_resumes` before it,
`apply_resizes.release_unfetched_tasks`, `pending_reasons` and `expected_starts` after it. `suspension` has what
becomes of a suspension once agents report.

Lock order. Every writer locks by rising id within a kind, and the kinds in this order, so that no two writers
wait for each other in a circle:

    lease (shared), queues, nodes, devices, quota lines, budget periods, jobs, attempts

`apply_starts.check` takes these from the lease to the jobs. From then on the transaction holds jobs and must wait
for nobody: victims, gangs and pending jobs that another transaction has locked are skipped (`SKIP LOCKED`) and
left to the next cycle. What needs nodes once more (`release_unfetched_tasks`) waits for the commit.
"""
