"""Where each number and each address stands in the blocks that a ring of steps shares with kernels.

One block describes all rings of a buffer (`ENVS`, ...). An index of starts is one row of the
table of indexes: it begins like an index of a table (`layout`), so that the same draws and trees
serve both, and goes on with what makes a start legal.
"""

from __future__ import annotations

from recollect.kernels import layout

# -- the rings of a buffer: one block -------------------------------------------------------------
ENVS = 0
RING = 1  # rows of one ring
REWARD_NEXT = 2  # 1 where a row's reward belongs to the action before it
STACK = 3  # frames of a stack, 1 for none
STRIDE = 4  # bytes of a record
SHIFT = 5  # a segment has 1 << SHIFT rows
SEGMENTS = 6  # places for segments in a lane: a power of two
STEPS = 7  # steps that are stored
ROWS = 8  # rows that are stored: steps and final observations
OVERWRITTEN = 9  # steps that have left, since the buffer was made
CUT = 10  # episodes that were longer than their ring
CALL = 11  # counts the calls that were checked
PMAX_TOP = 12  # offset of the top entry of A_PMAX
A_FLAGS = 13  # int8 by slot
A_OFFSET = 14  # int32 by slot: rows since the episode's first row
A_REMAINING = 15  # int32 by slot: rows of the episode from its first surviving row, valid there
A_NEWEST = 16  # int64 by environment: the number of the next row
A_OLDEST = 17  # int64 by environment: the first row that is stored
VISITS = layout.VISITS  # draws add up here what they touch
A_ROOM = 19  # int64 by environment: the first row without a segment
A_BASES = 20  # int64 by place of a segment: its address
A_PRIORITY = 21  # float64 by slot, -1 where there is no step; 0 where nobody weighs
A_PMAX = 22  # float64: highest priority of every 16 slots, of every 16 of these, ...
A_STATE = 23  # int64 by environment: what a check knows of an environment in its call
A_RECORD = layout.A_RECORD  # stays 0: draws of tables prefetch records here
A_HEAD = 25  # int64 by environment: the place in its ring where the next row goes
STEPS_BLOCK = 28

ROW_BITS = 44  # of a key; above them stands the environment
ROW_MASK = (1 << ROW_BITS) - 1

FIRST = 1  # flags of a row: it begins an episode
TERMINATED = 2  # its step ended the episode by itself
TRUNCATED = 4  # its step was the last one, though the episode could have gone on
FINAL = 8  # an episode's last observation: no step
ENDED = TERMINATED | TRUNCATED | FINAL

# -- an index of starts: one row, which begins as a table's index ---------------------------------
MODE = layout.INDEX_BLOCK  # what makes a start legal
SPAN = MODE + 1  # rows from its first to its last step
GAP = MODE + 2  # rows between two steps of a sequence
BURN_IN = MODE + 3
WINDOW = MODE + 4  # only the newest so many rows of each ring
A_CURSOR = MODE + 5  # int64 by environment: rows before it are decided
A_SEEN = MODE + 6  # int64 by environment: rows before it are counted in A_AHEAD
A_AHEAD = MODE + 7  # int64 by environment: steps from the cursor on
STARTS_BLOCK = MODE + 8

TRANSITION = 0
STOP = 1
PAD = 2
RESET = 3
EPISODE = 4

# -- what `append` gets: the ids of arrays, 0 where there is none ---------------------------------
IN_FIRST = 0
IN_TERMINATED = 1
IN_TRUNCATED = 2
IN_HAS_FINAL = 3
IN_FINALS = 4  # 1 where final observations are given
IN_COLUMNS = 5  # one per column, then one per column for final observations

# -- what a check may find ------------------------------------------------------------------------
FINE = 0
NO_SUCH_ENVIRONMENT = 1
NOT_FIRST_AFTER_END = 2
NOT_FIRST_AT_ALL = 3
FINAL_WITHOUT_END = 4
FIRST_AND_LAST = 5

# -- what a plan says of each position of a sequence: rows of its table of flags ------------------
IS_VALID = 0
IS_FIRST = 1
IS_TERMINATED = 2
IS_TRUNCATED = 3
IS_BOOTSTRAP = 4
POSITION_FLAGS = 5

# -- and of each transition: rows of its table of numbers -----------------------------------------
T_ENV = 0
T_ROW = 1
T_TAKEN = 2  # steps until the next observation
T_TERMINATED = 3
T_FIRST = 4  # the first surviving row of its episode
T_END = 5  # the row after the last step of its episode
TRANSITION_NUMBERS = 6

# -- one copy of a gather: where its addresses begin, how many, and which cell goes where ---------
JOB_BEGIN = 0
JOB_COUNT = 1
JOB_OFFSET = 2
JOB_SIZE = 3
JOB_TARGET = 4
JOB = 5
