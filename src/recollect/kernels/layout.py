"""Where each number and each address stands in the blocks that the engine shares with kernels.

A block is an int64 array. Names that begin with `A_` hold the address of an array (0 where the
table has none); the array's type is noted beside it.
"""

from __future__ import annotations

# -- the items of a storage: one block ---------------------------------------------------------
SLOTS = 0  # slots that the arrays have room for
LIVE = 1  # items stored, hidden ones included
HIDDEN = 2  # items stored and leased
COUNTER = 3  # counter of the next key
ORIGIN = 4  # the origin, shifted into the key's high bits
FREE_HEAD = 5  # first and last free slot; free slots are linked through their records
FREE_TAIL = 6
HASH_SIZE = 7  # a power of two
DISPLACED = 8  # items that do not stand at their key's own slot, and so are in the hash
PAYLOAD = 9  # bytes of live payload
ROWS = 10  # live rows
ROW_BYTES = 11  # payload of one row, where every row has the same
GLOBALS = 12  # indexes over the whole table: the first rows of the index table
FAMILIES = 13  # indexes kept once per partition; they follow, partition by partition
MAX_TIMES = 14  # max_times_sampled, 0 for no limit
SAMPLED = 15  # sum of times_sampled over visible items
DEAD_SEGMENTS = 16  # sealed segments that lost their last row since somebody looked
PMAX_TOP = 17  # offset of the top entry of A_PMAX
VISITS = 18  # nodes and entries that indexes touched, which tests count instead of seconds
HIDDEN_BYTES = 19  # bytes of payload of leased items
PMAX_LOOSE = 20  # 1 where the top entry of A_PMAX may be too high
DEAD_LAST = 21  # the last of DEAD_SEGMENTS, one of shared cells as ~number
A_RECORD = 24  # four words by slot: what nearly every call needs of an item, in one cache line
A_SHARED = 27  # int64 by slot: the location of an item's shared cells, in a store of their own
A_SHARED_NBYTES = 26  # int64 by slot: payload of the shared cells
A_ROWS = 28  # int32 by slot
A_NBYTES = 29  # int64 by slot
A_INSERTED = 32  # float64 by slot
A_PARTITION = 33  # int32 by slot
A_SEQ = 34  # int64 by slot, where arrival order is not the order of the keys' counters
A_HASH = 35  # int32: slot + 1 of displaced items, 0 where empty
A_PMAX = 36  # float64: highest priority of every 16 slots, of every 16 of these, ...; 0: all are 1
A_LOOSE = 46  # int8 by 16 slots: whether their highest priority may be lower than noted
A_SEGMENT_ROWS = 37  # int64 by segment: live rows
A_SEGMENT_SEALED = 39  # int8 by segment
A_SHARED_ROWS = 40  # the same for the store of shared cells
A_SHARED_SEALED = 41
A_PARTITION_LIVE = 42  # int64 by partition: items, hidden ones included
A_PARTITION_SAMPLED = 43  # int64 by partition: sum of times_sampled over visible items
A_PARTITION_VISIBLE = 38  # int64 by partition: items that are not hidden
A_VERSION = 44  # int64 by slot, -1 where there is none
A_DELIVERIES = 45  # int32 by slot: how often a lease brought it back
A_REVISION = 48  # int32 by slot: how often its rows were stored again; kernels do not use it
A_DIRECTORY = 47  # int64: the directory of the segments of rows, see below
ITEMS_BLOCK = 50

# An item's record has four words, of which the last holds two numbers. So of a slot's record, KEY
# stands at 4 * slot + KEY among words, TIMES at 8 * slot + TIMES among int32, and STATE at
# 32 * slot + STATE among bytes.
KEY = 0  # uint64; in a free slot the links of the free list
LOCATION = 1  # int64: segment << 32 | row, of the item's first row
PRIORITY = 2  # float64, -1 in a free slot
TIMES = 6  # int32, counted in int32: times_sampled
STATE = 28  # int8, counted in bytes: FREE, VISIBLE or LEASED

FREE = 0
VISIBLE = 1
LEASED = 2

LOW = 0xFFFFFFFF  # the low half of a word: the row of a location, or the second of two links

COUNTER_BITS = 44
COUNTER_MASK = (1 << COUNTER_BITS) - 1

# -- an index: one row of the index table ------------------------------------------------------
KIND = 0
COUNT = 1
DEPENDS = 2  # bits of the fields whose change moves an item in this index
# order: a list in order, and a heap for what came out of order
LEVELED = 3  # 1 where times_sampled comes before the value
DESCENDING = 4
VALUE_TYPE = 5  # of the value that orders, or weighs; one of BY_...
A_VALUE = 6  # by slot, for the types that name no record
ABSENT = 7  # the int64 that marks an absent value
HEAD = 8
TAIL = 9
A_NEXT = 10  # int32 by slot
A_PREVIOUS = 11  # int32 by slot
A_HEAP = 12  # entries of three int64, see `orders`
A_HEAP_PLACE = 13  # int32 by slot: place in the heap + 1, 0 for those in the list
HEAPED = 14
ENTRY = 24  # bytes of an entry of the heap
FIRST_ENTRY = 7  # entries left free, so that eight siblings begin with a cache line
A_SORT = 33  # int64 by slot: what the order compares, 0 where that is the arrival alone
# uniform, and the weights of one partition: a dense set
A_MEMBERS = 15  # int32: slots
A_PLACE = 16  # int32 by slot: place among the members
# weights: sum trees over places (over slots, where there are no members)
LEAVES = 17
LEVELS = 18
A_TREE = 19  # float64
A_ZEROS = 20  # float64: a second tree that counts the items of weight zero
A_SMALLEST = 21  # float64: smallest positive weight of every 16, where it is wanted
A_PARAMETERS = 22  # float64: see below
POSITIVE = 23  # items that weigh something
OFFSETS = 24  # LEVELS offsets of the levels in a tree, leaves first; at most 9
INDEX_BLOCK = 34

ORDER = 1
UNIFORM = 2
WEIGHT = 3

BY_SEQ = 0  # value types of an order or a weight
BY_INT64 = 1
BY_FLOAT64 = 2
BY_INT32 = 3
BY_INT8 = 4
BY_KEY = 5
BY_ROWS = 6
BY_NBYTES = 7
BY_PRIORITY = 8
BY_TIMES = 9

DEPENDS_PRIORITY = 1  # bits of DEPENDS
DEPENDS_TIMES = 2
DEPENDS_VERSION = 4
FIRST_FREE_DEPENDENCY = 8

ALPHA = 0  # places in A_PARAMETERS
RATE = 1  # halvings per version, 0 where weights do not age
REFERENCE = 2  # the version at which an item's weight is value ** alpha
PARAMETERS = 3

# -- a column, as kernels that copy rows see it: one row of the column table --------------------
CELL = 0  # FIXED, RAGGED or OPTIONAL
OFFSET = 1  # where the column stands in a row record
SIZE = 2  # bytes of a cell (fixed, optional) or of one element (ragged)
COLUMN_BLOCK = 3

FIXED = 0
RAGGED = 1
OPTIONAL = 2  # a fixed cell that may be absent: kept as a ragged cell of length 0 or 1

DIRECTORY_BASE = 0  # the directory of segments: one row each
DIRECTORY_STRIDE = 1
DIRECTORY_COLUMNS = 2  # columns that the segment knows; later ones are absent in it
DIRECTORY_BLOCK = 3

STRETCH_BASE = 0  # of the segment, 0 where the rows are there already
STRETCH_PLACE = 1  # the location of its first row
STRETCH_END = 2  # the number of the first row that comes after it
STRETCH_BLOCK = 3

# -- what is done to items, and what is said of those that were drawn ---------------------------
SAMPLE = 0  # verbs of `choose`
TAKE = 1
EVICT = 2

ADD = 1  # what happens to items of an index, and verbs of `arrange`
REMOVE = 2
CHANGE = 3
SHOW = 4
HIDE = 5
FILL = 8  # and the row of an index: change that one alone

DRAWN_KEY = 0  # rows of the int64 array that `choose` fills
DRAWN_TIMES = 1
DRAWN_LOCATION = 2
DRAWN_SLOT = 3
DRAWN_LEFT = 4  # slots of items that were withdrawn

DRAWN_PROBABILITY = 0  # rows of its float64 array
DRAWN_PRIORITY = 1
DRAWN_IMPORTANCE = 2

# -- a field of one new item, as `kernels.single` gets it ----------------------------------------
FIELD_ARRAY = 0  # the address of the field's array
FIELD_BYTES = 1  # of a value
FIELD_VALUE = 2  # its bits
FIELD_BLOCK = 3

# -- what `kernels.group_rows` finds out about a group -------------------------------------------
HAS_LOGPROBS = 0  # which of the optional arrays there are
HAS_MASK = 1
HAS_REWARD = 2
GROUP_PAYLOAD = 3  # bytes that count, and bytes in segments: of rows, then of shared cells
GROUP_STORED = 4
SHARED_PAYLOAD = 5
SHARED_STORED = 6
SOME_NAN = 7  # whether a logprob is not a number
HAS_VERSIONS = 8
OLDEST = 9  # the lowest version of a token
TOGETHER = 10  # whether all rollouts were dispatched at one version
GROUP_BLOCK = 11

# -- a copy that two threads share, see `kernels.shared_copy` -------------------------------------
JOB_WITHIN = 0  # threads that are in it, and JOB_CLOSED where no more may come
JOB_NEXT = 8  # the first part that nobody has: in a cache line of its own
JOB_SEMAPHORE = 16  # of the C library, four words
JOB_PARTS = 24
JOB_ROWS = 25
JOB_SEGMENTS = 26  # how many segments there are, columns, and columns that vary; -1 for rows
JOB_WHOLE = 27
JOB_CELLS = 28
JOB_DIRECTORY = 29  # addresses of what `copy_varying` or `copy_fixed` calls so
JOB_LOCATIONS = 30
JOB_COLUMNS = 31
JOB_VARYING = 32
JOB_OFFSETS = 33
JOB_TARGETS = 34
JOB_BLOCK = 35
JOB_CLOSED = 1 << 32
