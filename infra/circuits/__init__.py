"""Circuit breakers: a system outside Muster that fails is left alone a while, then tried by one caller.

`shared.SharedCircuit` is of systems that are called seldom and by several processes: its state is a row.
`memory.MemoryCircuit` is of Redis, which is called with every request: each process has its own.
"""
