"""OpenDP's tree of counts, for `quantiles.py`: run by an interpreter that has the wheel `opendp`.

It reads {"leaves": counts, "epsilon": epsilon} and writes the consistent counts of leaves, of a
tree to the base 4 with a pure epsilon of that, which OpenDP divides over the levels.
"""

import json
import sys

import opendp.prelude as dp

_BASE = 4


def main() -> None:
    """Read counts, and write what OpenDP makes of them."""
    dp.enable_features("contrib")
    asked = json.load(sys.stdin)
    leaves, epsilon = asked["leaves"], asked["epsilon"]
    space = dp.vector_domain(dp.atom_domain(T=int), len(leaves)), dp.l1_distance(T=int)
    tree = dp.t.make_b_ary_tree(*space, leaf_count=len(leaves), branching_factor=_BASE)
    scale = dp.binary_search_param(
        lambda s: tree >> dp.m.then_laplace(s), d_in=1, d_out=epsilon, T=float
    )
    released = (tree >> dp.m.then_laplace(scale))(leaves)
    dp.enable_features("idealized-numerics")
    json.dump(dp.t.make_consistent_b_ary_tree(branching_factor=_BASE)(released), sys.stdout)


if __name__ == "__main__":
    main()
