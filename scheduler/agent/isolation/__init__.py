"""What keeps the jobs of a node apart from each other, from the agent and from the portal.

`probe` chooses once, by what the machine offers and what the site says; the choice (`means`) goes to the shim. A guard
enters its namespaces and its control group when it is forked (`cell`), and each task's first process starts confined:
under its person's account (`accounts`), with the files it may use (`landlock`) and no more than its amounts
(`cgroups`).
"""
