/* What the files of the compiled loops share: the border to Python, threads, and vectors.

   Everything here has a twin in Python (selection.py, neurons.py, whole_tensors.py), which runs where these files could
   not be compiled. Formulas are stated there; a comment at each loop names the statement that it must equal.

   signatures.py has checked types, layouts and lengths before an entry point is called. An entry point still checks every
   number that it finds in an array and uses as an index, or whose sum or product it does: positions, begins, channels,
   taps, offsets. What lies outside raises IndexError, and nothing is read or written there. */

#ifndef PLRP_LOOPS_H
#define PLRP_LOOPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Versions of a loop for newer processors, chosen when the library is loaded: too early for the sanitizers. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_THIS_MACHINE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_THIS_MACHINE
#endif

#define INLINE static inline __attribute__((always_inline))

#pragma GCC visibility push(hidden)

/* --- entry points (module.c) ------------------------------------------------------------------------------------ */

/* All of them, with the kinds of their arguments: a array, n number ≥ 0, z any integer, r real, f flag, g the nineteen
   numbers of a geometry. As signatures.py has them; importing the module compares the two. */
#define ENTRIES(X) \
    X(select, "aanaan") X(thin, "annaan") X(collect_rows, "aaannafaaaan") X(collect_dense, "annnafaaaan") \
    X(prune_tokens, "annnrraaan") \
    X(regroup, "aaannnaaaa") X(take, "aanan") X(union, "ananaaa") X(flat, "aanannaa") X(plan, "anaaag") \
    X(winners, "aanang") X(gather, "aannnan") X(spread, "aannnan") X(add, "ananaaa") \
    X(weights, "aannnzanaaan") X(layer, "nnaaaannnnaaaaannnnnaarfn") X(redistribute, "naaaannnaaaannnnaaaaaan") \
    X(divide, "aanrfan") X(split, "aaaaannnfrfn") X(to_channels_last, "aannnn") X(hand_one_by_one, "aaaannnnnnzn") \
    X(hand_to_winners, "aaannnnn") X(pool, "aaanng") X(count, "annan") X(glance, "annnn")

#define ENTRY(name) PyObject *py_##name(PyObject *self, PyObject *const *given, Py_ssize_t count)
#define DECLARED(name, kinds)                                                                                          \
    ENTRY(name);                                                                                                       \
    static const char format_##name[] = kinds;
ENTRIES(DECLARED)
#undef DECLARED

typedef struct {
    void *data;
    int64_t size; /* entries; −1 for None */
} array;

typedef struct { /* where the outputs of a convolution or a pool read; three axes, ones where the layer has fewer */
    int64_t samples, in[3], out[3], kernel[3], stride[3], padding[3], dilation[3];
} geometry;

/* Reads the arguments of an entry point into variables, one per letter of its format. Another type raises TypeError, a
   number out of range ValueError. */
int read_arguments(const char *entry, PyObject *const *given, Py_ssize_t count, const char *format, ...);
#define READ(name, ...) read_arguments(#name, given, count, format_##name, __VA_ARGS__)

/* Raises with the name of the entry point; always NULL. */
PyObject *refuse(PyObject *type, const char *entry, const char *fault);

enum { BITS = 48, BITS_OF_AXIS = 31 }; /* of a number, and of one of a geometry: no product of two axes overflows */
#define TOO_LARGE "its sizes multiply to 2⁴⁸ or more"

/* The product of two sizes; INT64_MAX where it would wrap round. */
INLINE int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

INLINE int64_t plane_of(const int64_t axes[3]) { return times(axes[0] * axes[1], axes[2]); }

/* Draws the keys of the fingerprints of weights (layers.c); 0 with an exception if there are none. */
int draw_keys(void);

/* --- threads (threads.c) ---------------------------------------------------------------------------------------- */

typedef void (*task)(void *context, int64_t item);

void prepare_threads(void);

/* Run items 0 … n − 1 on up to `threads` threads; which thread runs which item has no influence on any result. */
void parallel(task run, void *context, int64_t items, int64_t threads);

/* --- vectors ---------------------------------------------------------------------------------------------------- */

enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

INLINE float sum_lanes(const lanes *v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += (*v)[i];
    return total;
}

INLINE uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* --- indices that depend on data -------------------------------------------------------------------------------- */

INLINE int outside(int64_t index, int64_t size) { return (uint64_t)index >= (uint64_t)size; }

/* Whether 0 ≤ list[0] ≤ list[1] ≤ … ≤ list[n] ≤ limit. */
INLINE int ascending(const int64_t *list, int64_t n, int64_t limit) {
    int wrong = list[0] < 0 || list[n] > limit;
    for (int64_t i = 0; i < n; i++) wrong |= list[i] > list[i + 1];
    return !wrong;
}

/* What is wrong with a list of neurons; NULL if nothing is. Their channels are below `width`, their positions ascend below
   `plane` (of all samples), and `begins` parts them among the positions. */
const char *fault_of(array positions, array begins, array channels, int64_t width, int64_t plane);

/* --- pools ------------------------------------------------------------------------------------------------------ */

/* The place in its plane of the input that won; the first of several, as torch has it. −1 in a window of padding. */
static inline int64_t winner_of(const float *plane, const geometry *g, int64_t o0, int64_t o1, int64_t o2) {
    int64_t best = -1;
    float most = -INFINITY;
    for (int64_t k0 = 0; k0 < g->kernel[0]; k0++) {
        int64_t i0 = o0 * g->stride[0] - g->padding[0] + k0 * g->dilation[0];
        if (i0 < 0 || i0 >= g->in[0]) continue;
        for (int64_t k1 = 0; k1 < g->kernel[1]; k1++) {
            int64_t i1 = o1 * g->stride[1] - g->padding[1] + k1 * g->dilation[1];
            if (i1 < 0 || i1 >= g->in[1]) continue;
            for (int64_t k2 = 0; k2 < g->kernel[2]; k2++) {
                int64_t i2 = o2 * g->stride[2] - g->padding[2] + k2 * g->dilation[2];
                if (i2 < 0 || i2 >= g->in[2]) continue;
                int64_t i = (i0 * g->in[1] + i1) * g->in[2] + i2;
                if (best < 0 || plane[i] > most) {
                    best = i;
                    most = plane[i];
                }
            }
        }
    }
    return best;
}


#pragma GCC visibility pop

#endif
