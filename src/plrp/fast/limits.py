"""From where on which way is faster: measured on two cores with benchmarks/switch.py."""

# A layer follows single neurons where at most this share of its outputs holds relevance: the cost is flat between 0.06
# and 0.15, and rises below.
NEURONS_BELOW = 0.15
# Where fewer of the samples than this share have few neurons, all go by whole tensors: to split a batch and to join it
# costs some passes over its memory, which small convolutions of large batches do not save (benchmarks/sequences.py).
SPLIT_FROM = 0.25
# Without the compiled loops, whole positions are gathered: worth it where at most this share of them holds relevance.
POSITIONS_BELOW = 0.05
FEWEST = 4096  # smaller tensors are not worth the book-keeping

# Prunings below this p leave so many neurons that dense propagation is faster, and that a stack would fill the memory.
STACKED_FROM = 0.15
# As many samples as a stack may have: beyond, larger steps gain nothing. A stack of small tapes has more, as long as
# they would take STACKED_BYTES at most: there every step costs more than its numbers.
STACKED_SAMPLES = 16

# References are recorded as one batch while the pass on so many copies of the inputs takes at most these bytes.
STACKED_BYTES = 1 << 24

SMALL = 1 << 16  # operations on fewer entries per copy take all copies of a stack in one call

MANY_ZEROS = 0.3  # inputs of which at most this share is not zero receive their relevance one by one,
FEW_INPUTS = 16  # if they are of few channels: the weights are read once for each

GLANCE = 16  # entries of a token, or of an output, that are looked at first; only if all are zero, the others are
# A linear layer hands down from some of its tokens or outputs alone where at most this share of them holds relevance.
SOME_TOKENS = 0.75
# To take the weights of some outputs is to copy them: with fewer tokens than MANY_TOKENS that must save more reading.
SOME_OUTPUTS = 0.5
MANY_TOKENS = 16
COPIED = 1 << 20  # entries of a weight that are copied at a time: fresh memory for more costs more than all of it
