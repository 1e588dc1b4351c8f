"""Where the graphs of a head find what they go by: one row of numbers on the device."""

# Three times where the cache is, as the kernels want to know it (addresses of cache and tables, capacity, first free
# slot, whether a tree comes): for reading, for a chain after it and for a tree after it. Then the positions of the
# first entry read and of the first drafted, the index of the last entry read, and the tokens read.
WHERE = 6  # numbers each
START = 4  # among them: the first free slot
READ, CHAIN, TREE = 0, WHERE, 2 * WHERE
POSITION = {READ: 3 * WHERE, CHAIN: 3 * WHERE + 1, TREE: 3 * WHERE + 1}
LAST = 3 * WHERE + 2
TOKENS = 3 * WHERE + 3
