"""The mechanism `tracked`: known items are counted exactly, new items are found in a table.

After a few rounds most items that devices hold are known. Each known item that may become heavy is
*tracked*. It has a counter of a few bits (`counters.py`), which costs a tenth of a key in a table
and counts exactly. The other items are sampled at threshold t into an IBLT (`plan.py`), as in
`adaptive-iblt`. Since the frequent items are no longer in the table, t is small, and rare items are
found. An item is tracked from the round after its first sample on, while it may become heavy.

One round, in the order of its vector (`plan.py`):

    counters     exact counts of tracked items (`counters.py`)
    strings      pieces of strings of hashed keys (`string_fetching.py`)
    table        a sample of the untracked items (`plan.py`)

Between rounds the study state keeps the observations of each item (`observations.py`). Totals
include the rounds in which an item was not counted. In the model of these rounds, rates stay and
jump at times, each item by itself (`change_points.py`), or move gradually if counted items do
(`rate_filter.py`). If they do not move, all rounds inform the rounds without a count.

The forecast of all totals (`forecast.py`) then decides which items have counters, which strings are
fetched, and how the bytes of a round are divided. The next t is the one at which the table would be
nearly full. By Good and Turing, new keys will have the same number of tokens as keys with one token
had now.

Devices learn the list of tracked items, which is what the study knows so far, and about how
frequent each item is, from the width of its counter.

All tuning constants are in `tuning_constants.py`, with the measurements that chose them.

Source: sampling and tables are from [Gascon23], the missing mass is from [Good53]; tracking is
ours.
"""
