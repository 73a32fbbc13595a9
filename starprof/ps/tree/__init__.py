"""Gradients on their way through a tree: children hand theirs to a parent on their node, which sends one sum.

The parent adds up, in the order of ranks, what is there in time, and keeps who is in the sum: what the server records
are the same contributors as without a tree. Whoever is not in a sum, for whatever reason, is told or notices, and sends
for himself; so a parent can fail in any way without a gradient lost. What a child must do is what it does anyway.
"""

from starprof.ps.tree.child import Child
from starprof.ps.tree.parent import Parent

__all__ = ["Child", "Parent"]
