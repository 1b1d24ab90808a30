/* Passes over whole tensors. Large maps are bound by memory: one pass instead of one per arithmetic step. */

#include "loops.h"

enum { SOME = 1 << 14, TILE = 32 }; /* entries, and places, per item */

typedef struct {
    const float *r, *d, *a, *b;
    float *out, *out_b;
    int64_t size, channels, plane; /* size: entries, and samples where tiles are turned */
    float epsilon;
    int one_sign;
    const int64_t *winners;
    int64_t below; /* places of the plane that winners are in */
} passage;

INLINE float stable(float d, float epsilon, int one_sign) { return d + (one_sign ? epsilon : copysignf(epsilon, d)); }

FOR_THIS_MACHINE
static void divide_some(void *context, int64_t item) {
    passage *p = context;
    int64_t to = (item + 1) * SOME < p->size ? (item + 1) * SOME : p->size;
    float epsilon = p->epsilon;
    if (p->one_sign)
        for (int64_t i = item * SOME; i < to; i++) p->out[i] = p->r[i] / stable(p->d[i], epsilon, 1);
    else
        for (int64_t i = item * SOME; i < to; i++) p->out[i] = p->r[i] / stable(p->d[i], epsilon, 0);
}

/* out = r / (d + ε sign d), as `rules.quotient` states it. divide(r, d, size, epsilon, one_sign, out, threads) */
ENTRY(divide) {
    (void)self;
    array r, d, out;
    int64_t threads;
    double epsilon;
    passage p = {0};
    if (!READ(divide, &r, &d, &p.size, &epsilon, &p.one_sign, &out, &threads)) return NULL;
    p.r = r.data, p.d = d.data, p.out = out.data, p.epsilon = (float)epsilon;
    Py_BEGIN_ALLOW_THREADS
    parallel(divide_some, &p, (p.size + SOME - 1) / SOME, p.size < 1 << 16 ? 1 : threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* The shares of both operands of a + b in r; over so many entries side by side. */
INLINE void split_run(const passage *p, const float *r, const float *a, const float *b, float *to_a, float *to_b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float x = a[i], y = b[i], s = r[i] / stable(x + y, p->epsilon, p->one_sign);
        to_a[i] = s * x;
        to_b[i] = s * y;
    }
}

FOR_THIS_MACHINE
static void split_some(void *context, int64_t item) {
    passage *p = context;
    int64_t from = item * SOME, size = from + SOME < p->size ? SOME : p->size - from;
    split_run(p, p->r + from, p->a + from, p->b + from, p->out + from, p->out_b + from, size);
}

typedef uint32_t lane_bits __attribute__((vector_size(LANES * sizeof(uint32_t)), aligned(4)));

#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t lane_numbers __attribute__((vector_size(LANES * sizeof(int32_t))));
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (lane_numbers){__VA_ARGS__})
#endif

/* Eight vectors of eight, turned: v[i][j] becomes v[j][i]. */
INLINE void transpose(lanes v[LANES]) {
    lanes t[LANES];
    for (int i = 0; i < LANES; i += 2) {
        t[i] = SHUFFLED(v[i], v[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = SHUFFLED(v[i], v[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < LANES; i += 4) {
        v[i] = SHUFFLED(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        v[i + 1] = SHUFFLED(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        v[i + 2] = SHUFFLED(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        v[i + 3] = SHUFFLED(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = SHUFFLED(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[i + 4] = SHUFFLED(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int i = 0; i < LANES; i++) v[i] = t[i];
}

INLINE void load(lanes v[LANES], const float *from, int64_t step) {
    for (int i = 0; i < LANES; i++) v[i] = *(const lanes *)(from + i * step);
}

INLINE void store(const lanes v[LANES], float *to, int64_t step) {
    for (int i = 0; i < LANES; i++) *(lanes *)(to + i * step) = v[i];
}

/* The places of one item, of the whole tensor (samples, channels, plane). */
INLINE void tile_of(const passage *p, int64_t item, int64_t *base, int64_t *from, int64_t *to) {
    int64_t tiles = (p->plane + TILE - 1) / TILE;
    *base = item / tiles * p->channels * p->plane;
    *from = item % tiles * TILE;
    *to = *from + TILE < p->plane ? *from + TILE : p->plane;
}

/* The same where relevance has its channels last, and the operands have not: turned on the way, eight by eight. */
FOR_THIS_MACHINE
static void split_tiles(void *context, int64_t item) {
    passage *p = context;
    int64_t base, from, to, width = p->channels, plane = p->plane;
    tile_of(p, item, &base, &from, &to);
    uint32_t epsilon = bits_of(p->epsilon), sign = p->one_sign ? 0 : 0x80000000u;
    for (int64_t i = from; i < to;) {
        int64_t whole = i + LANES <= to, c = 0;
        for (; whole && c + LANES <= width; c += LANES) {
            int64_t last = base + i * width + c, first = base + c * plane + i;
            lanes r[LANES], a[LANES], b[LANES];
            load(r, p->r + last, width);
            transpose(r);
            for (int n = 0; n < LANES; n++) {
                lanes x = *(const lanes *)(p->a + first + n * plane), y = *(const lanes *)(p->b + first + n * plane), z = x + y;
                r[n] /= z + (lanes)(((lane_bits)z & sign) | epsilon); /* ε with the sign of z */
                a[n] = r[n] * x;
                b[n] = r[n] * y;
            }
            transpose(a);
            transpose(b);
            store(a, p->out + last, width);
            store(b, p->out_b + last, width);
        }
        int64_t end = whole ? i + LANES : to;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = c; k < width; k++) {
                int64_t last = base + j * width + k, first = base + k * plane + j;
                split_run(p, p->r + last, p->a + first, p->b + first, p->out + last, p->out_b + last, 1);
            }
        i = end;
    }
}

FOR_THIS_MACHINE
static void turn_tiles(void *context, int64_t item) {
    passage *p = context;
    int64_t base, from, to, width = p->channels, plane = p->plane;
    tile_of(p, item, &base, &from, &to);
    for (int64_t i = from; i < to;) {
        int64_t whole = i + LANES <= to, c = 0;
        for (; whole && c + LANES <= width; c += LANES) {
            lanes v[LANES];
            load(v, p->r + base + c * plane + i, plane);
            transpose(v);
            store(v, p->out + base + i * width + c, width);
        }
        int64_t end = whole ? i + LANES : to;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = c; k < width; k++) p->out[base + j * width + k] = p->r[base + k * plane + j];
        i = end;
    }
}

/* A tensor (samples, channels, plane) with its channels last. to_channels_last(from, to, samples, channels, plane, threads) */
ENTRY(to_channels_last) {
    (void)self;
    array from, to;
    int64_t samples, threads;
    passage p = {0};
    if (!READ(to_channels_last, &from, &to, &samples, &p.channels, &p.plane, &threads)) return NULL;
    p.r = from.data, p.out = to.data;
    if (from.size < 1 << 16) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    if (from.size) parallel(turn_tiles, &p, samples * ((p.plane + TILE - 1) / TILE), threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* a / (a + b) and b / (a + b) of r, stabilised, as `passing._split_sum` states it. split(r, a, b, out, out_b, samples,
   channels, plane, last, epsilon, one_sign, threads); `last`: r and the results have their channels last */
ENTRY(split) {
    (void)self;
    array r, a, b, out, out_b;
    int64_t samples, threads;
    int last;
    double epsilon;
    passage p = {0};
    if (!READ(split, &r, &a, &b, &out, &out_b, &samples, &p.channels, &p.plane, &last,
                        &epsilon, &p.one_sign, &threads))
        return NULL;
    p.r = r.data, p.a = a.data, p.b = b.data, p.out = out.data, p.out_b = out_b.data;
    p.size = r.size, p.epsilon = (float)epsilon;
    if (p.size < 1 << 16) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    if (last && p.size)
        parallel(split_tiles, &p, samples * ((p.plane + TILE - 1) / TILE), threads);
    else
        parallel(split_some, &p, (p.size + SOME - 1) / SOME, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* A convolution of sequences, handed to the inputs that are not zero: one-hot letters, of which one in four is. What an
   input reads of s, channels last, lies side by side. */

typedef struct {
    const float *s, *w, *x; /* (samples, reads, outputs), (inputs, taps, outputs) with the last tap first, (samples, length, inputs) */
    float *out;             /* as x */
    int64_t length, reads, inputs, outputs, taps, before; /* before: how far left of an input the first output it goes to is */
} one_by_one;

FOR_THIS_MACHINE
static void hand_some(void *context, int64_t item) {
    const one_by_one *p = context;
    int64_t blocks = (p->length + TILE - 1) / TILE, sample = item / blocks, begin = item % blocks * TILE;
    int64_t stop = begin + TILE < p->length ? begin + TILE : p->length;
    const float *s = p->s + sample * p->reads * p->outputs;
    for (int64_t j = begin; j < stop; j++) {
        int64_t first = j - p->before, from = first > 0 ? first : 0;
        int64_t to = first + p->taps < p->reads ? first + p->taps : p->reads, size = (to - from) * p->outputs;
        const float *read = size > 0 ? s + from * p->outputs : NULL; /* NULL: of padding alone */
        for (int64_t c = 0; c < p->inputs; c++) {
            int64_t at = (sample * p->length + j) * p->inputs + c;
            float x = p->x[at], rest = 0;
            p->out[at] = 0;
            if (x == 0 || !read) continue;
            const float *w = p->w + (c * p->taps + from - first) * p->outputs;
            lanes sums[4] = {{0}, {0}, {0}, {0}};
            int64_t i = 0;
            for (; i + 4 * LANES <= size; i += 4 * LANES)
                for (int n = 0; n < 4; n++)
                    sums[n] += *(const lanes *)(read + i + n * LANES) * *(const lanes *)(w + i + n * LANES);
            for (; i < size; i++) rest += read[i] * w[i];
            sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            p->out[at] = x * (sum_lanes(&sums[0]) + rest);
        }
    }
}

/* hand_one_by_one(s, w, x, out, samples, length, reads, inputs, outputs, taps, before, threads) */
ENTRY(hand_one_by_one) {
    (void)self;
    array s, w, x, out;
    int64_t samples, threads;
    one_by_one p = {0};
    if (!READ(hand_one_by_one, &s, &w, &x, &out, &samples, &p.length, &p.reads, &p.inputs,
                        &p.outputs, &p.taps, &p.before, &threads))
        return NULL;
    p.s = s.data, p.w = w.data, p.x = x.data, p.out = out.data;
    Py_BEGIN_ALLOW_THREADS
    if (x.size) parallel(hand_some, &p, samples * ((p.length + TILE - 1) / TILE), samples * p.length < 256 ? 1 : threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Relevance of a max pool to the winners, which are known; channels last on both sides. One item: some channels of a
   sample, whose windows may overlap. A winner outside the plane is that of a window wholly in the padding: nobody takes
   what it holds. */
static void hand_channels(void *context, int64_t item) {
    passage *p = context;
    int64_t blocks = (p->channels + 15) / 16, sample = item / blocks, c0 = item % blocks * 16;
    int64_t channels = c0 + 16 < p->channels ? 16 : p->channels - c0;
    const int64_t *winners = p->winners + (sample * p->channels + c0) * p->plane;
    const float *r = p->r + sample * p->plane * p->channels + c0;
    float *out = p->out + sample * p->below * p->channels + c0;
    for (int64_t i = 0; i < p->plane; i++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t winner = winners[c * p->plane + i];
            if (!outside(winner, p->below)) out[winner * p->channels + c] += r[i * p->channels + c];
        }
}

/* hand_to_winners(r, winners, out, samples, channels, plane, below, threads) */
ENTRY(hand_to_winners) {
    (void)self;
    array r, winners, out;
    int64_t samples, threads;
    passage p = {0};
    if (!READ(hand_to_winners, &r, &winners, &out, &samples, &p.channels, &p.plane, &p.below, &threads))
        return NULL;
    p.r = r.data, p.winners = winners.data, p.out = out.data;
    if (r.size < 1 << 14) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    if (r.size) parallel(hand_channels, &p, samples * ((p.channels + 15) / 16), threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

typedef struct {
    const float *x, *given;
    float *taken;
    geometry g;
} pooling;

/* Windows side by side whose size the compiler knows. By masks, not branches: neither which input wins nor whether a
   window holds relevance could be foreseen. */
INLINE void hand_windows(const float *line, const float *given, float *taken, int64_t windows, int size) {
    for (int64_t o = 0; o < windows; o++, line += size, taken += size) {
        int64_t best = 0;
        float most = line[0];
        for (int i = 1; i < size; i++) {
            int64_t larger = -(int64_t)(line[i] > most);
            best ^= (best ^ i) & larger;
            most = line[i] > most ? line[i] : most;
        }
        taken[best] += given[o];
    }
}

/* A plane of one axis, and taps side by side. */
static void hand_line(const pooling *p, const float *line, const float *given, float *taken) {
    int64_t in = p->g.in[0], out = p->g.out[0], kernel = p->g.kernel[0], stride = p->g.stride[0], padding = p->g.padding[0];
    int64_t whole = 0; /* windows that are done */
    if (kernel == stride && !padding && kernel >= 2 && kernel <= 4) {
        whole = out < in / kernel ? out : in / kernel;
        if (kernel == 2) hand_windows(line, given, taken, whole, 2);
        if (kernel == 3) hand_windows(line, given, taken, whole, 3);
        if (kernel == 4) hand_windows(line, given, taken, whole, 4);
    }
    for (int64_t o = whole; o < out; o++) {
        int64_t from = o * stride - padding, to = from + kernel < in ? from + kernel : in;
        from = from > 0 ? from : 0;
        if (given[o] == 0 || from >= to) continue;
        int64_t best = from;
        float most = line[from];
        for (int64_t i = from + 1; i < to; i++) {
            best = line[i] > most ? i : best;
            most = line[i] > most ? line[i] : most;
        }
        taken[best] += given[o];
    }
}

static int is_line(const geometry *g) {
    for (int a = 1; a < 3; a++)
        if (g->in[a] != 1 || g->out[a] != 1 || g->kernel[a] != 1 || g->padding[a]) return 0;
    return g->dilation[0] == 1;
}

static void hand_plane(void *context, int64_t item) {
    pooling *p = context;
    const int64_t *out = p->g.out;
    int64_t in_plane = plane_of(p->g.in), o = 0;
    const float *plane = p->x + item * in_plane, *given = p->given + item * plane_of(out);
    float *taken = p->taken + item * in_plane;
    if (is_line(&p->g)) {
        hand_line(p, plane, given, taken);
        return;
    }
    for (int64_t o0 = 0; o0 < out[0]; o0++)
        for (int64_t o1 = 0; o1 < out[1]; o1++)
            for (int64_t o2 = 0; o2 < out[2]; o2++, o++)
                if (given[o] != 0) {
                    int64_t best = winner_of(plane, &p->g, o0, o1, o2);
                    if (best >= 0) taken[best] += given[o];
                }
}

/* Relevance of a whole max pool to the winners; what a window wholly in the padding holds, nobody takes.
   pool(x, given, taken, planes, threads, geometry …) */
ENTRY(pool) {
    (void)self;
    array x, held, taken;
    int64_t planes, threads;
    pooling p = {0};
    if (!READ(pool, &x, &held, &taken, &planes, &threads, &p.g)) return NULL;
    p.x = x.data, p.given = held.data, p.taken = taken.data;
    Py_BEGIN_ALLOW_THREADS
    if (held.size) parallel(hand_plane, &p, planes, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

typedef struct {
    const float *values;
    int64_t each;
    int64_t *counts;
} counting;

FOR_THIS_MACHINE
static void count_row(void *context, int64_t row) {
    counting *c = context;
    const float *v = c->values + row * c->each;
    int64_t found = 0;
    for (int64_t i = 0; i < c->each; i++) found += v[i] != 0;
    c->counts[row] = found;
}

/* How many entries of each row are not zero. count(values, rows, each, counts, threads) */
ENTRY(count) {
    (void)self;
    array values, counts;
    int64_t rows, threads;
    counting c = {0};
    if (!READ(count, &values, &rows, &c.each, &counts, &threads)) return NULL;
    c.values = values.data, c.counts = counts.data;
    Py_BEGIN_ALLOW_THREADS
    parallel(count_row, &c, rows, values.size < 1 << 18 ? 1 : threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* How many rows seem to have few entries that are not zero: at most `most` of `looks` that stand evenly in the row, as
   `neurons.seemingly_few` states it. glance(values, rows, each, looks, most) */
ENTRY(glance) {
    (void)self;
    array values;
    int64_t rows, each, looks, most, few = 0;
    if (!READ(glance, &values, &rows, &each, &looks, &most)) return NULL;
    const float *v = values.data;
    for (int64_t row = 0; row < rows; row++) {
        int64_t found = 0;
        for (int64_t i = 0; each && i < looks; i++) found += v[row * each + i * each / looks] != 0;
        few += found <= most;
    }
    return PyLong_FromLongLong(few);
}
