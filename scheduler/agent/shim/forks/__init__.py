"""How guards are forked, and how a guard starts its first task: with as little memory of their own as can be."""
