"""Tuning constants of `tracked`, each with the measurement that chose its value.

The mechanism as a whole was chosen among some twenty variants on git words, cities and domains.
Kosarak, web words and German words were held out ("Words" in docs/research/paper-figures.md). A
value whose comment has no measurement was not measured by itself. Formats and limits of plans are
in the modules that use them.

Modules read these constants as `tuning.NAME`, so that a test or an experiment can replace them.
"""

# Drift of rates between blocks of rounds (`drift_measurement.py`).

# Blocks between two compared counts: several, so that random steps, whose squares grow like time,
# differ from trends, whose squares grow like its square.
DRIFT_LAGS = (1, 2, 4, 8)
MIN_COUNT_PAIRS = 40  # pairs of counts needed to conclude a drift or a break
DRIFT_FIT_ITERATIONS = 3  # iterations of the reweighted least-squares fit
MAX_DRIFT_VARIANCE = 1.0  # largest phi^2 and trend^2 of a fit
MIN_BREAK_JUMP = 0.5  # smallest jump of a break, in multiples of the mean rate
MIN_BREAK_JUMP_PER_DRIFT = 2.0  # smallest jump of a break, in multiples of the usual drift
# Standard errors by which capped squares must exceed the usual. It finds breaks among items with
# one token per round. Measured for the search for breaks as a whole only: domains with a sudden
# change, 4,770 words, F1 0.944 -> 0.948.
BREAK_Z_SCORE = 5.0
# Cap of a square, in multiples of its expectation, so that few items make no break. Among items
# with one token per round a break moved capped means, but almost never the median of squares.
# The value is not measured.
MAX_SQUARE_PER_EXPECTED = 9.0
MAX_BREAKS = 8  # breaks of a study
MAX_BREAK_JUMP = 3.0  # largest jump of a rate at a break, in multiples of its mean

# Rates of items (`rate_filter.py`).

# Standard deviation of the prior of an item's first rate, in multiples of its mean.
FIRST_RATE_SD = 3.0
# Standard deviations beyond which one item has jumped by itself, which a normal variable exceeds
# with probability 1e-3. Without jumps, a late item had 8,000 tokens published as 12,000 +- 400.
# The value is not measured.
ITEM_JUMP_Z_SCORE = 3.3
# Counts of few tokens are skewed: this part of the surprise (1 / divisor) adds to the variance.
SKEW_DIVISOR = 3
MIN_RATE_PER_MEAN = 0.05  # smallest rate of a block, per mean of the item, in the second pass

# Totals (`rate_filter.py`).

# Trend per block, in multiples of the mean rate, from which a study drifts gradually. Web words:
# 0.066 with a gradual drift, and at most 0.003 without, changes and bursts included.
MIN_TREND = 0.02

# Counters (`counters.py`).

# Probability that a count is above its window, and also that it is below. Git words, 240 words: F1
# 0.886 with 1e-4, 0.921 with 0.01, 0.931 with 0.02. With weekly changes 0.02 left 92% in intervals.
WINDOW_MISS_PROBABILITY = 0.01
# Largest fraction of a group's windows that a slip counts for: a false total makes a slip of any
# size.
MAX_SLIP_FRACTION = 0.25
MIN_SLIP_WINDOWS = 8  # windows that a slip may count for in small groups
MIN_UNSURE_WINDOWS = 2  # windows of a slip: one alone would have been corrected
# Pairs of counts that may share the windows above the smallest counts. A wrong pair agrees with the
# check with probability 2^-24, and so one of all pairs with 2^-8.
MAX_TRIED_PAIRS = 2**17

# Counters of one-shot sums (`split_counters.py`).

# Standard deviations that a window holds on both sides of an expected count, beside a tenth of it.
WINDOW_DEVIATIONS = 6.0
WINDOW_SLACK = 5  # counts that liars may add on both sides
MAX_CLASS_WINDOWS = 26  # windows that hold all tokens of devices (`thinned_counts.py`)
# Primes of one round after the other that are compared: each 1.3 times the one before, from
# MIN_PRIME on, with which three bytes of a string take at most MAX_NUMBER_BITS.
MIN_PRIME, PRIME_STEP, MAX_NUMBER_BITS = 61, 1.3, 32
# Surprise of thinned counts (chi-squared, three degrees of freedom) up to which they agree with the
# counters that were read: one of 370 classes is weighed in vain. Beyond the second number a table
# is not read, one in 700,000 in vain.
CLASS_SURPRISE, TABLE_SURPRISE = 14.2, 30.0
# Log-odds against another number of missing windows below which a class is in doubt, and below
# which a table is not read.
CLASS_LOG_ODDS, TABLE_LOG_ODDS = 10.0, 6.0
# Expected counts of a class differ up to this ratio: the prior favours the largest 64 times.
MAX_CLASS_RATIO = 16
MAX_DOUBTFUL_CLASSES = 24  # of items whose last count was in doubt

# Posterior of counts outside their windows (`window_posterior.py`).

# Windows by which one of several counts may be below or above what is read.
MAX_WINDOWS_BELOW, MAX_WINDOWS_ABOVE = 32, 64
# Counts of a group that are weighed. With 3,000 a false total took 2.5 s and 340 MB.
MAX_WEIGHED_COUNTS = 1024
MAX_MISSING_WINDOWS = 512  # windows that are missing in all; a false total has any number
# Moves of one item that are combined with those of others, the most probable ones. All pairs of
# the second number are combined with each other.
MAX_SINGLE_MOVES, MAX_PAIRED_MOVES = 2**15, 256
MIN_MOVE_WEIGHT = -25.0  # log-probability of a move, relative to none
MIN_READING_PROBABILITY = 0.999  # posterior of a set of moves that is treated as the truth

# Forecast of totals (`forecast.py`).

# Items with numbers in the study state; beyond them, the rarest are evicted. From 4,096 to 16,384,
# F1 rose from 0.948 to 0.957 on domains with a sudden change (4,770 words), for 100 MB and seconds
# per round, when rounds had sketches of untracked items. Without them it is not measured.
MAX_REMEMBERED_ITEMS = 2**14
# Keys of evicted items that help to read stuck tables; more keys take seconds.
MAX_EVICTED_KEYS = 2**16
EVICT_Z_SCORE = 6.0  # standard errors below the threshold at which an item may be evicted
# Standard errors below the threshold at which an item loses its counter. 2.5 and 3 were within the
# noise of five runs on four populations.
UNTRACK_Z_SCORE = 2.0
# Standard errors above the threshold at which a string is fetched before the end.
FETCH_Z_SCORE = 1.0
# Standard errors above the threshold from which an item is surely listed by its total so far, so
# that its string may give phrases to plans.
LISTED_Z_SCORE = 3.0
# Last part of the rounds, in which the estimate alone decides what is fetched.
NEAR_END_SHARE = 0.25
# Standard deviations, and additional tokens, beyond which the last block replaces the rate.
LAST_BLOCK_Z_SCORE = 3.0
LAST_BLOCK_SLACK_TOKENS = 1
MAX_SLIP_BITS = 4  # bits by which a slip widens a counter at most

# Sampling of items that are not tracked (`plan.py`).

TABLE_MARGIN_SDS = 1.0  # standard deviations of the number of keys that a table keeps free
MAX_T_FACTOR = 3.0  # factor by which t per device changes at most
# Fraction of all tokens that an unknown item may hold: the last sample does not bound a new item.
# The value is not measured.
NEW_ITEM_TOKEN_SHARE = 0.125
# Factor by which values may exceed their expectation before a table cannot be read.
VALUE_HEADROOM = 4.0
MIN_VALUE_HEADROOM = 16  # headroom in any case, in bounds of one device
# Largest t, in multiples of the t at which any data of devices fits. Honest devices need no more.
MAX_T_PER_WORST_CASE = 2
SINGLETON_LIMIT = 1.5  # sampled tokens below which a key counts as sampled once (Good-Turing)

# Strings of hashed domains (`string_fetching.py`).

MIN_PIECE_BYTES = 6  # URLs of 1,465 words: F1 0.917, and 0.906 with 9
# A string is expected to have as many bytes before any other is known.
EXPECTED_STRING_BYTES = 64
# Strings that are fetched before all others if no phrases are known, and the rounds for what is
# urgent: these strings, and all strings if rates move, since their holders may be gone later. URLs
# of 1,000 words: F1 0.894 without them, 0.910 in all rounds left, 0.926 in 4. Cities of 5,724 words
# with a gradual drift: 0.905 in all rounds left, 0.958 in 4; a sudden change (3,000): 0.879, 0.948.
FIRST_STRINGS, URGENT_ROUNDS = 25, 4
# Phrases of a plan (`phrases.py`): the fewest have digits for the halves of a byte.
MIN_PHRASES, MAX_PHRASES, MAX_PHRASE_LENGTH, ESCAPE_DIGITS, MIN_PHRASE_ITEMS = 14, 254, 32, 3, 4
MAX_COUNTER_BYTES_SHARE = 0.75  # fraction of a round's bytes that counters may take
MAX_T_FACTOR_FOR_STRINGS = 2.0  # factor by which a round's strings may raise t
MAX_PIECE_BYTES_SHARE = 0.5  # fraction of the bytes without counters that one piece may take
# Fraction of all bytes that strings can always have: a consequence of the two limits.
GUARANTEED_STRING_BYTES_SHARE = MAX_PIECE_BYTES_SHARE * (1 - MAX_COUNTER_BYTES_SHARE)
