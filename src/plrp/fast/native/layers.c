/* Convolutions over the neurons that hold relevance: their weights, the pass down, and PLRP-M's second pass. */

#include "loops.h"

/* --- weights ---------------------------------------------------------------------------------------------------- */

/* Weights as the loops below read them, as `maps.Weight` states them: (outputs, taps, inputs of the group), from
   (outputs, inputs, taps); per channel scaled, and cut to a sign: part 0 all, 1 positive, −1 negative. Only the channels
   that are wanted and not yet there.

   Rows that are cached from one call to the next have a fingerprint each, of the raw row and its scale; or they are EMPTY,
   or BEING_FILLED by another thread. A row whose fingerprint is right is there already; how many have another is returned,
   and these stay as they are: an earlier explanation may still be reading them.
   weights(raw, scale or None, outputs, inputs, taps, part, wanted or None (all), count, ready or None, out, fingerprints
   or None, threads) → how many rows have another fingerprint */
typedef struct {
    const float *raw, *scale;
    int64_t inputs, taps, part;
    const int32_t *todo;
    int64_t count, each; /* of them, at a time */
    float *out;
    _Atomic uint64_t *fingerprints;
    atomic_llong outdated;
} weighing;

enum { EMPTY = 0, BEING_FILLED = 1, FIRST_FINGERPRINT = 2 };

/* The halves of a product of 64 bits, together: every bit of the result hangs on every bit of both. */
INLINE uint64_t mixed(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* 64 bits of n floats and one more: four chains of products, so that where a number stands matters too. The keys are
   drawn once per process: rows have the same fingerprint by chance alone, one in 2⁶⁴, whoever chose their numbers. */
enum { CHAINS = 4, PIECE = 4 * CHAINS };
static uint64_t keys[CHAINS];

int draw_keys(void) {
    PyObject *os = PyImport_ImportModule("os");
    PyObject *drawn = os ? PyObject_CallMethod(os, "urandom", "n", (Py_ssize_t)sizeof keys) : NULL;
    if (drawn && PyBytes_Check(drawn) && PyBytes_GET_SIZE(drawn) == (Py_ssize_t)sizeof keys)
        memcpy(keys, PyBytes_AS_STRING(drawn), sizeof keys);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "os.urandom gave no keys.");
    Py_XDECREF(drawn);
    Py_XDECREF(os);
    return !PyErr_Occurred();
}

INLINE void chain(uint64_t *chains, const float *piece) {
    uint64_t words[2 * CHAINS];
    memcpy(words, piece, sizeof words);
    for (int c = 0; c < CHAINS; c++) chains[c] = mixed(words[2 * c] ^ keys[c], words[2 * c + 1] ^ chains[c]);
}

FOR_THIS_MACHINE
static uint64_t fingerprint(const float *v, int64_t n, float scale) {
    uint64_t chains[CHAINS] = {keys[3], keys[2], keys[1], keys[0]};
    int64_t i = 0;
    for (; i + PIECE <= n; i += PIECE) chain(chains, v + i);
    if (i < n) {
        float rest[PIECE] = {0};
        memcpy(rest, v + i, (size_t)(n - i) * sizeof *v);
        chain(chains, rest);
    }
    uint64_t all = mixed(keys[0] ^ (uint64_t)n, keys[1] ^ bits_of(scale));
    for (int c = 0; c < CHAINS; c++) all = mixed(all ^ keys[c], chains[c] ^ keys[CHAINS - 1 - c]);
    return all < FIRST_FINGERPRINT ? FIRST_FINGERPRINT : all;
}

FOR_THIS_MACHINE
static void fill_row(const weighing *w, int64_t k) {
    int64_t size = w->inputs * w->taps;
    const float *raw = w->raw + k * size;
    float *out = w->out + k * size;
    float scale = w->scale ? w->scale[k] : 1;
    float low = w->part > 0 ? 0 : -INFINITY, high = w->part < 0 ? 0 : INFINITY;
    if (w->taps == 1) {
        for (int64_t j = 0; j < size; j++) {
            float v = raw[j] * scale;
            v = v < low ? low : v;
            out[j] = v > high ? high : v;
        }
        return;
    }
    for (int64_t t = 0; t < w->taps; t++)
        for (int64_t j = 0; j < w->inputs; j++) {
            float v = raw[j * w->taps + t] * scale;
            v = v < low ? low : v;
            out[t * w->inputs + j] = v > high ? high : v;
        }
}

static void weigh_one(weighing *w, int64_t k) {
    int64_t size = w->inputs * w->taps;
    if (!w->fingerprints) {
        fill_row(w, k);
        return;
    }
    uint64_t now = fingerprint(w->raw + k * size, size, w->scale ? w->scale[k] : 1);
    uint64_t cached = EMPTY;
    if (atomic_compare_exchange_strong(&w->fingerprints[k], &cached, BEING_FILLED)) {
        fill_row(w, k);
        atomic_store(&w->fingerprints[k], now);
    } else if (cached != now)
        atomic_fetch_add(&w->outdated, 1);
}

static void weigh(void *context, int64_t item) {
    weighing *w = context;
    int64_t to = (item + 1) * w->each < w->count ? (item + 1) * w->each : w->count;
    for (int64_t i = item * w->each; i < to; i++) weigh_one(w, w->todo[i]);
}

ENTRY(weights) {
    (void)self;
    array raw, scale, a_wanted, a_ready, out, fingerprints;
    int64_t outputs, inputs, taps, part, size, threads;
    if (!READ(weights, &raw, &scale, &outputs, &inputs, &taps, &part, &a_wanted, &size,
                        &a_ready, &out, &fingerprints, &threads))
        return NULL;
    const int32_t *wanted = a_wanted.data;
    int all = a_wanted.size < 0;
    uint8_t *ready = a_ready.data;
    if (outputs > INT32_MAX || (all && size > outputs))
        return refuse(PyExc_ValueError, "weights", "more channels are asked for than there are");
    int32_t *todo = malloc((size_t)(outputs + 1) * sizeof *todo);
    uint8_t *listed = calloc((size_t)(outputs + 1), sizeof *listed);
    int64_t n = 0, i = 0;
    for (; todo && listed && i < size; i++) {
        int32_t k = all ? (int32_t)i : wanted[i];
        if (outside(k, outputs)) break;
        if ((!ready || !ready[k]) && !listed[k]) {
            listed[k] = 1;
            todo[n++] = k;
        }
    }
    if (!todo || !listed || i < size) {
        int memory = todo && listed;
        PyObject *none = memory ? refuse(PyExc_IndexError, "weights", "a channel lies outside the weight") : PyErr_NoMemory();
        free(todo);
        free(listed);
        return none;
    }
    int64_t each = 1 + (1 << 14) / (inputs * taps + 1);
    weighing w = {raw.data, scale.data, inputs, taps, part, todo, n, each, out.data, fingerprints.data, 0};
    if (n * inputs * taps < 1 << 16) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    parallel(weigh, &w, (n + w.each - 1) / w.each, threads);
    Py_END_ALLOW_THREADS
    int64_t outdated = atomic_load(&w.outdated);
    for (i = 0; i < n && ready && !outdated; i++) ready[todo[i]] = 1; /* not before they are: others may share them */
    free(todo);
    free(listed);
    return PyLong_FromLongLong(outdated);
}

/* --- layers over single neurons --------------------------------------------------------------------------------- */

typedef struct {
    int64_t places; /* output positions, and their neurons */
    const int64_t *begins;
    const int32_t *channels;
    const int32_t *taps;
    int64_t kernel, inputs, outputs, groups;
    const float *weight; /* (outputs, kernel, inputs / groups) */
    const float *rows;   /* activations (input positions, inputs) */
    float *d;            /* per neuron: Σ_j n_jk, added to what is there */
    float *s;            /* per neuron: what is handed down per contribution */
    float *taken;        /* (input positions, inputs): Σ_k w_jk s_k, added to what is there */
    const int64_t *positions; /* of the outputs */
    int64_t axis, inner, height; /* the first axis of the output, places per step along it, and steps per band */
    int64_t per_sample, phase, phases; /* bands that are not neighbours share no input */
    int64_t fused; /* d, then s = given / (d + bias ± ε), then `taken`, while the weights are in the cache */
    const float *given;
    const float *bias; /* per channel, or none */
    float epsilon;
    int one_sign;
} layer;

enum { BLOCK = 4 }; /* neurons taken at once: what they read is loaded once for all of them */

/* How many taps from t on read rows side by side, as their weights are: they are taken as one. */
INLINE int64_t run_of(const layer *l, const int32_t *taps, int64_t t) {
    int64_t run = 1;
    while (l->groups == 1 && taps[t] >= 0 && t + run < l->kernel && taps[t + run] == taps[t] + run) run++;
    return run;
}

/* Σ_j x_j w_jk for `block` neurons of one position and one group; `block` is a constant wherever this is inlined. */
INLINE void dots_of(const layer *l, int64_t q, int64_t e, int block) {
    int64_t per_group = l->inputs / l->groups, outputs = l->outputs / l->groups, size = l->kernel * per_group;
    const int32_t *taps = l->taps + q * l->kernel;
    int64_t from = l->channels[e] / outputs * per_group;
    const float *weight[BLOCK];
    lanes sums[BLOCK], more[BLOCK];
    float rest[BLOCK];
    for (int n = 0; n < block; n++) {
        weight[n] = l->weight + l->channels[e + n] * size;
        sums[n] = more[n] = (lanes){0};
        rest[n] = 0;
    }
    for (int64_t t = 0, run; t < l->kernel; t += run) {
        run = run_of(l, taps, t);
        if (taps[t] < 0) continue;
        const float *x = l->rows + taps[t] * l->inputs + from;
        int64_t w = t * per_group, i = 0, end = run * per_group;
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            lanes a = *(const lanes *)(x + i), b = *(const lanes *)(x + i + LANES);
            for (int n = 0; n < block; n++) {
                sums[n] += a * *(const lanes *)(weight[n] + w + i);
                more[n] += b * *(const lanes *)(weight[n] + w + i + LANES);
            }
        }
        for (; i + LANES <= end; i += LANES)
            for (int n = 0; n < block; n++) sums[n] += *(const lanes *)(x + i) * *(const lanes *)(weight[n] + w + i);
        for (; i < end; i++)
            for (int n = 0; n < block; n++) rest[n] += x[i] * weight[n][w + i];
    }
    for (int n = 0; n < block; n++) {
        sums[n] += more[n];
        l->d[e + n] += sum_lanes(&sums[n]) + rest[n];
    }
}

/* Σ_k w_jk s_k over `block` neurons of one position and one group, added to the rows they read. */
INLINE void hand_of(const layer *l, int64_t q, int64_t e, int block) {
    int64_t per_group = l->inputs / l->groups, outputs = l->outputs / l->groups, size = l->kernel * per_group;
    const int32_t *taps = l->taps + q * l->kernel;
    int64_t from = l->channels[e] / outputs * per_group;
    const float *weight[BLOCK];
    float s[BLOCK];
    for (int n = 0; n < block; n++) {
        weight[n] = l->weight + l->channels[e + n] * size;
        s[n] = l->s[e + n];
    }
    for (int64_t t = 0, run; t < l->kernel; t += run) {
        run = run_of(l, taps, t);
        if (taps[t] < 0) continue;
        float *to = l->taken + taps[t] * l->inputs + from;
        int64_t w = t * per_group, i = 0, end = run * per_group;
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            lanes a = *(const lanes *)(to + i), b = *(const lanes *)(to + i + LANES);
            for (int n = 0; n < block; n++) {
                a += *(const lanes *)(weight[n] + w + i) * s[n];
                b += *(const lanes *)(weight[n] + w + i + LANES) * s[n];
            }
            *(lanes *)(to + i) = a;
            *(lanes *)(to + i + LANES) = b;
        }
        for (; i + LANES <= end; i += LANES) {
            lanes a = *(const lanes *)(to + i);
            for (int n = 0; n < block; n++) a += *(const lanes *)(weight[n] + w + i) * s[n];
            *(lanes *)(to + i) = a;
        }
        for (; i < end; i++)
            for (int n = 0; n < block; n++) to[i] += weight[n][w + i] * s[n];
    }
}

/* All neurons of one position, as many at once as there are in one group. */
#define BY_BLOCKS(one)                                                  \
    int64_t e = l->begins[q], end = l->begins[q + 1];                   \
    if (l->groups == 1)                                                 \
        for (; e + BLOCK <= end; e += BLOCK) one(l, q, e, BLOCK);       \
    if (l->groups == 1 && end - e >= 2) {                               \
        one(l, q, e, 2);                                                \
        e += 2;                                                         \
    }                                                                   \
    for (; e < end; e++) one(l, q, e, 1);

INLINE void dots_at(const layer *l, int64_t q) { BY_BLOCKS(dots_of) }
INLINE void hand_at(const layer *l, int64_t q) { BY_BLOCKS(hand_of) }

/* As `rules.quotient` states it. */
static inline void quotients_at(const layer *l, int64_t q) {
    for (int64_t e = l->begins[q]; e < l->begins[q + 1]; e++) {
        float d = l->d[e];
        if (l->bias) d += l->bias[l->channels[e]];
        l->d[e] = d;
        if (l->epsilon == 0)
            l->s[e] = d == 0 ? 0 : l->given[e] / d;
        else
            l->s[e] = l->given[e] / (d + (l->one_sign ? l->epsilon : copysignf(l->epsilon, d)));
    }
}

enum { PLACES = 16 }; /* output positions per item where nothing is shared */

FOR_THIS_MACHINE
static void dots_some(void *context, int64_t item) {
    const layer *l = context;
    int64_t to = (item + 1) * PLACES < l->places ? (item + 1) * PLACES : l->places;
    for (int64_t q = item * PLACES; q < to; q++) dots_at(l, q);
}

/* The first output position at or after a place. */
static int64_t first_at(const layer *l, int64_t place) {
    int64_t low = 0, high = l->places;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (l->positions[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Where band b begins. A sample has `per_sample` bands, an even number, so that samples are not neighbours either. */
static int64_t band_begin(const layer *l, int64_t b) {
    int64_t sample = b / l->per_sample, step = b % l->per_sample * l->height;
    return first_at(l, (sample * l->axis + (step < l->axis ? step : l->axis)) * l->inner);
}

FOR_THIS_MACHINE
static void hand_band(void *context, int64_t item) {
    const layer *l = context;
    int64_t band = item * l->phases + l->phase;
    int64_t end = band_begin(l, band + 1);
    for (int64_t q = band_begin(l, band); q < end; q++) {
        if (l->fused) {
            dots_at(l, q);
            quotients_at(l, q);
        }
        hand_at(l, q);
    }
}

enum { MULTIPLIED = 1 << 15 }; /* entries per item */

typedef struct {
    float *to;
    const float *by;
    int64_t size;
} product;

FOR_THIS_MACHINE
static void multiply_some(void *context, int64_t item) {
    product *p = context;
    int64_t to = (item + 1) * MULTIPLIED < p->size ? (item + 1) * MULTIPLIED : p->size;
    for (int64_t i = item * MULTIPLIED; i < to; i++) p->to[i] *= p->by[i];
}

/* The bands of outputs along the first axis, from how far apart they must be to read no input in common; returns how many
   places the outputs of all samples have. */
static int64_t set_bands(layer *l, int64_t samples, int64_t reach) {
    l->height = reach > 0 ? reach : 1;
    l->per_sample = ((l->axis + l->height - 1) / l->height + 1) / 2 * 2;
    l->phases = reach > 0 ? 2 : 1;
    return times(times(samples, l->axis), l->inner);
}

/* Whether a tap reads a row that is not there. */
FOR_THIS_MACHINE
static int taps_outside(const int32_t *taps, int64_t size, int64_t rows) {
    int32_t limit = rows < INT32_MAX ? (int32_t)rows : INT32_MAX;
    int wrong = 0;
    for (int64_t t = 0; t < size; t++) wrong |= (taps[t] < -1) | (taps[t] >= limit);
    return wrong;
}

static const char *const NO_ROW = "a tap reads a row that is not there";

/* One layer over the neurons that hold relevance, in any of three ways (`what`): 1 contributions Σ_j n_jk into d
   (`neuron_layers.contributions`), 2 Σ_k w_jk s_k into taken, times the rows if they are given (`neuron_layers.hand`), 3 both at once
   with the quotient between (`rules.quotient`).
   layer(what, places, positions, begins, channels, taps, kernel, inputs, outputs, groups, weight, rows, d, s, taken,
   read, samples, axis, inner, reach, given, bias, epsilon, one_sign, threads) */
ENTRY(layer) {
    (void)self;
    array positions, begins, channels, taps, weight, rows, d, s, taken, held, bias;
    int64_t what, read, samples, reach, threads;
    double epsilon;
    layer l = {0};
    if (!READ(layer, &what, &l.places, &positions, &begins, &channels,
                        &taps, &l.kernel, &l.inputs, &l.outputs, &l.groups, &weight, &rows, &d, &s, &taken, &read, &samples,
                        &l.axis, &l.inner, &reach, &held, &bias, &epsilon, &l.one_sign, &threads))
        return NULL;
    l.positions = positions.data, l.begins = begins.data, l.channels = channels.data, l.taps = taps.data;
    l.weight = weight.data, l.rows = rows.data, l.d = d.data, l.s = s.data, l.taken = taken.data;
    l.given = held.data, l.bias = bias.data, l.epsilon = (float)epsilon, l.fused = what == 3;
    int64_t plane = set_bands(&l, samples, reach);
    if (plane >> BITS) return refuse(PyExc_ValueError, "layer", TOO_LARGE);
    int dots = what != 2, hand = what != 1;
    if (what < 1 || what > 3 || (dots && (rows.size < 0 || d.size < 0)) || (hand && (s.size < 0 || taken.size < 0)) ||
        (l.fused && held.size < 0))
        return refuse(PyExc_ValueError, "layer", "an array is missing for what it is to do");
    if (!l.groups || l.inputs % l.groups || l.outputs % l.groups)
        return refuse(PyExc_ValueError, "layer", "channels do not part into groups");
    const char *fault;
    Py_BEGIN_ALLOW_THREADS
    fault = fault_of(positions, begins, channels, l.outputs, plane);
    if (!fault && taps_outside(l.taps, taps.size, read)) fault = NO_ROW;
    int64_t products = times(channels.size, times(l.kernel, l.inputs / l.groups)), several = products < 1 << 18 ? 1 : threads;
    if (!fault && !hand) {
        parallel(dots_some, &l, (l.places + PLACES - 1) / PLACES, several);
    } else if (!fault && l.places) {
        int64_t bands = samples * l.per_sample;
        for (l.phase = 0; l.phase < l.phases; l.phase++) parallel(hand_band, &l, bands / l.phases, several);
    }
    if (!fault && hand && rows.size >= 0) {
        product p = {l.taken, l.rows, read * l.inputs};
        parallel(multiply_some, &p, (p.size + MULTIPLIED - 1) / MULTIPLIED, p.size < 1 << 17 ? 1 : threads);
    }
    Py_END_ALLOW_THREADS
    if (fault) return refuse(PyExc_IndexError, "layer", fault);
    Py_RETURN_NONE;
}

/* --- PLRP-M's second pass --------------------------------------------------------------------------------------- */

typedef struct {
    layer l;                        /* the outputs; d and s as the first pass left them */
    const int64_t *lowest, *end;    /* per row of the plan: the survivors that stand there */
    const int32_t *channels;        /* of the survivors */
    const float *x;                 /* what they contribute with */
    float *received, *orphaned;     /* per survivor, and per neuron of the output */
    atomic_int failed;
} second;

FOR_THIS_MACHINE
static void again_band(void *context, int64_t item) {
    second *g = context;
    const layer *l = &g->l;
    int64_t band = item * l->phases + l->phase, last = band_begin(l, band + 1);
    int64_t room = 0;
    int32_t *at = NULL; /* the survivors that one output position reads: where in a weight's row, and which */
    int64_t *which = NULL;
    float *x = NULL, *n = NULL, *got = NULL; /* what they contribute with, contribute to one neuron, and receive of all */
    for (int64_t q = band_begin(l, band); q < last; q++) {
        const int32_t *taps = l->taps + q * l->kernel;
        int64_t many = 0;
        for (int64_t t = 0; t < l->kernel; t++)
            if (taps[t] >= 0) many += g->end[taps[t]] - g->lowest[taps[t]];
        if (many > room) {
            room = 2 * many;
            free(at), free(which), free(x), free(n), free(got);
            at = malloc((size_t)room * sizeof *at);
            which = malloc((size_t)room * sizeof *which);
            x = malloc((size_t)room * sizeof *x);
            n = malloc((size_t)room * sizeof *n);
            got = malloc((size_t)room * sizeof *got);
            if (!at || !which || !x || !n || !got) {
                atomic_store(&g->failed, 1);
                break;
            }
        }
        many = 0;
        for (int64_t t = 0; t < l->kernel; t++)
            if (taps[t] >= 0)
                for (int64_t i = g->lowest[taps[t]]; i < g->end[taps[t]]; i++) {
                    at[many] = (int32_t)(t * l->inputs + g->channels[i]);
                    which[many] = i;
                    x[many] = g->x[i];
                    got[many++] = 0;
                }
        for (int64_t e = l->begins[q]; e < l->begins[q + 1]; e++) {
            int64_t k = l->channels[e], i = 0;
            const float *w = l->weight + k * l->kernel * l->inputs;
            float m = l->s[e] * (l->d[e] - (l->bias ? l->bias[k] : 0)), reached = 0;
            for (i = 0; i < many; i++) n[i] = x[i] * w[at[i]];
            lanes sums[2] = {{0}, {0}};
            for (i = 0; i + 2 * LANES <= many; i += 2 * LANES) {
                sums[0] += *(const lanes *)(n + i);
                sums[1] += *(const lanes *)(n + i + LANES);
            }
            for (; i < many; i++) reached += n[i];
            sums[0] += sums[1];
            reached += sum_lanes(&sums[0]);
            if (reached <= 0) { /* contributions ≥ 0 cancel only where there are none */
                g->orphaned[e] = m;
                continue;
            }
            g->orphaned[e] = 0;
            float share = m / reached;
            for (i = 0; i < many; i++) got[i] += share * n[i];
        }
        for (int64_t i = 0; i < many; i++) g->received[which[i]] += got[i];
    }
    free(at), free(which), free(x), free(n), free(got);
}

/* What each neuron of the output handed down in the first pass, to the survivors alone, as `propagation.redistribute`
   states it; for contributions ≥ 0 and one group. redistribute(places, positions, begins, channels, taps, kernel, inputs, outputs, weight, d, s,
   bias, samples, axis, inner, reach, lowest, end, survivors' channels, x, received, orphaned, threads) */
ENTRY(redistribute) {
    (void)self;
    array positions, begins, channels, taps, weight, d, s, bias, lowest, end, living, x, received, orphaned;
    int64_t samples, reach, threads;
    second g = {.l = {.groups = 1}};
    layer *l = &g.l;
    if (!READ(redistribute, &l->places, &positions, &begins, &channels, &taps,
                        &l->kernel, &l->inputs, &l->outputs, &weight, &d, &s, &bias, &samples, &l->axis, &l->inner, &reach,
                        &lowest, &end, &living, &x, &received, &orphaned, &threads))
        return NULL;
    l->positions = positions.data, l->begins = begins.data, l->channels = channels.data, l->taps = taps.data;
    l->weight = weight.data, l->d = d.data, l->s = s.data, l->bias = bias.data;
    g.lowest = lowest.data, g.end = end.data, g.channels = living.data, g.x = x.data;
    g.received = received.data, g.orphaned = orphaned.data;
    int64_t plane = set_bands(l, samples, reach);
    if (plane >> BITS) return refuse(PyExc_ValueError, "redistribute", TOO_LARGE);
    if (l->kernel * l->inputs > INT32_MAX)
        return refuse(PyExc_ValueError, "redistribute", "a neuron has 2³¹ weights or more");
    const char *fault;
    Py_BEGIN_ALLOW_THREADS
    fault = fault_of(positions, begins, channels, l->outputs, plane);
    if (!fault && taps_outside(l->taps, taps.size, lowest.size)) fault = NO_ROW;
    for (int64_t r = 0; !fault && r < lowest.size; r++)
        if (g.lowest[r] < 0 || g.lowest[r] > g.end[r] || g.end[r] > living.size) fault = "a row has survivors that are not there";
    for (int64_t i = 0; !fault && i < living.size; i++)
        if (outside(g.channels[i], l->inputs)) fault = "a survivor's channel lies outside the tensor";
    for (l->phase = 0; !fault && l->places && l->phase < l->phases; l->phase++)
        parallel(again_band, &g, samples * l->per_sample / l->phases, channels.size > 256 ? threads : 1);
    Py_END_ALLOW_THREADS
    if (fault) return refuse(PyExc_IndexError, "redistribute", fault);
    if (g.failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
