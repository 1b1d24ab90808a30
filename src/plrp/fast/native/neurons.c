/* Relevance of single neurons: where they stand, what they read, and their rows.

   It is kept by position: `positions[q]` (sample · plane + place, ascending) holds the neurons begins[q] … begins[q + 1]
   of `channels` and `values`. Activations at the positions they touch are gathered into rows (positions × channels), so
   that every inner loop runs over contiguous channels. */

#include "loops.h"


/* The checks that every list of neurons goes through before it is used; one pass over short lists, without branches. */
FOR_THIS_MACHINE
static int channels_outside(const int32_t *channels, int64_t size, int64_t width) {
    uint32_t limit = width < INT32_MAX ? (uint32_t)width : INT32_MAX;
    int wrong = 0;
    for (int64_t e = 0; e < size; e++) wrong |= (uint32_t)channels[e] >= limit;
    return wrong;
}

const char *fault_of(array positions, array begins, array channels, int64_t width, int64_t plane) {
    const int64_t *at = positions.data, *begin = begins.data, places = positions.size;
    if (begins.size != places + 1 || begin[0] != 0 || begin[places] != channels.size || !ascending(begin, places, channels.size))
        return "`begins` do not part the neurons";
    if (places && (at[0] < 0 || at[places - 1] >= plane)) return "a position lies outside the tensor";
    int wrong = 0;
    for (int64_t q = 1; q < places; q++) wrong |= at[q - 1] >= at[q];
    if (wrong) return "positions do not ascend";
    return channels_outside(channels.data, channels.size, width) ? "a channel lies outside the tensor" : NULL;
}

/* --- lists of neurons ------------------------------------------------------------------------------------------- */

/* Single neurons in any order, brought into the order of positions; what lands on one neuron is added up; as
   `neurons.regroup` states it. regroup(at, channels, values, neurons, places, width, out_positions, out_begins,
   out_channels, out_values) → number of positions. `at` are positions < places, or negative: such a neuron goes nowhere.
   `width` is the number of channels. */
ENTRY(regroup) {
    (void)self;
    array a_at, a_channels, a_values, a_positions, a_begins, a_out_channels, a_out_values;
    int64_t neurons, places, width;
    if (!READ(regroup, &a_at, &a_channels, &a_values, &neurons, &places, &width,
                        &a_positions, &a_begins, &a_out_channels, &a_out_values))
        return NULL;
    const int64_t *at = a_at.data;
    const int32_t *channels = a_channels.data;
    const float *values = a_values.data;
    int64_t *out_positions = a_positions.data, *out_begins = a_begins.data;
    int32_t *out_channels = a_out_channels.data;
    float *out_values = a_out_values.data;
    int wrong = 0;
    for (int64_t i = 0; i < neurons; i++) wrong |= at[i] >= places;
    if (wrong) return refuse(PyExc_IndexError, "regroup", "a position lies outside the tensor");
    if (channels_outside(channels, neurons, width))
        return refuse(PyExc_IndexError, "regroup", "a channel lies outside the tensor");
    int64_t *next = calloc((size_t)(places + 1), sizeof *next);
    int64_t *order = malloc((size_t)(neurons + 1) * sizeof *order);
    int64_t *seen = malloc((size_t)(width + 1) * sizeof *seen); /* where a channel stands in the list of this position */
    if (!next || !order || !seen) {
        free(next);
        free(order);
        free(seen);
        return PyErr_NoMemory();
    }
    int64_t found = 0, written = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < neurons; i++)
        if (at[i] >= 0) next[at[i] + 1]++;
    for (int64_t i = 0; i < places; i++) next[i + 1] += next[i];
    int64_t inside = next[places];
    for (int64_t i = 0; i < neurons; i++)
        if (at[i] >= 0) order[next[at[i]]++] = i; /* now next[p] is where position p ends */
    for (int64_t c = 0; c < width; c++) seen[c] = -1;
    for (int64_t i = 0; i < inside;) {
        int64_t position = at[order[i]], first = written;
        for (; i < inside && at[order[i]] == position; i++) {
            int64_t e = order[i];
            int32_t c = channels[e];
            if (seen[c] >= first) {
                out_values[seen[c]] += values[e];
            } else {
                seen[c] = written;
                out_channels[written] = c;
                out_values[written++] = values[e];
            }
        }
        out_positions[found] = position;
        out_begins[found++] = first;
    }
    out_begins[found] = written;
    Py_END_ALLOW_THREADS
    free(next);
    free(order);
    free(seen);
    return PyLong_FromLongLong(found);
}

typedef struct {
    const float *from;
    const int64_t *index;
    int64_t length, size;
    float *out;
    atomic_int failed;
} taking;

enum { TAKEN = 4096 }; /* entries per item */

static void take_some(void *context, int64_t item) {
    taking *t = context;
    int64_t to = (item + 1) * TAKEN < t->size ? (item + 1) * TAKEN : t->size;
    for (int64_t i = item * TAKEN; i < to; i++) {
        if (outside(t->index[i], t->length)) {
            atomic_store(&t->failed, 1);
            return;
        }
        t->out[i] = t->from[t->index[i]];
    }
}

/* take(source, index, size, out, threads): out[i] = source[index[i]] */
ENTRY(take) {
    (void)self;
    array source, index, out;
    int64_t size, threads;
    if (!READ(take, &source, &index, &size, &out, &threads)) return NULL;
    taking t = {source.data, index.data, source.size, size, out.data, 0};
    Py_BEGIN_ALLOW_THREADS
    parallel(take_some, &t, (size + TAKEN - 1) / TAKEN, size < 1 << 15 ? 1 : threads);
    Py_END_ALLOW_THREADS
    if (t.failed) return refuse(PyExc_IndexError, "take", "an index lies outside the tensor");
    Py_RETURN_NONE;
}

/* The union of two ascending lists of positions, and where each list stands in it, as `neurons._union` states it.
   union(a, n, b, m, out, where_a, where_b) → number of positions */
ENTRY(union) {
    (void)self;
    array a, b, a_out, where_a, where_b;
    int64_t n, m, i = 0, j = 0, size = 0;
    if (!READ(union, &a, &n, &b, &m, &a_out, &where_a, &where_b)) return NULL;
    const int64_t *first = a.data, *second = b.data;
    int64_t *out = a_out.data, *where_first = where_a.data, *where_second = where_b.data;
    while (i < n || j < m) { /* each step takes one of a list at least, so that n + m places are enough */
        int64_t next = j >= m || (i < n && first[i] <= second[j]) ? first[i] : second[j];
        if (i < n && first[i] == next) where_first[i++] = size;
        if (j < m && second[j] == next) where_second[j++] = size;
        out[size++] = next;
    }
    return PyLong_FromLongLong(size);
}

/* Where neurons stand in the whole tensor (samples, channels, plane), and of which sample they are, as `neurons.Neurons`
   states it. flat(positions, begins, places, channels, width, plane, out, out_sample) */
ENTRY(flat) {
    (void)self;
    array a_positions, a_begins, a_channels, a_out, a_sample;
    int64_t places, width, plane;
    if (!READ(flat, &a_positions, &a_begins, &places, &a_channels, &width, &plane,
                        &a_out, &a_sample))
        return NULL;
    const char *fault = fault_of(a_positions, a_begins, a_channels, width, plane ? INT64_MAX / 2 / (width + 1) : 0);
    if (fault) return refuse(PyExc_IndexError, "flat", fault);
    const int64_t *positions = a_positions.data, *begins = a_begins.data;
    const int32_t *channels = a_channels.data;
    int64_t *out = a_out.data, *sample = a_sample.data;
    for (int64_t q = 0; q < places; q++) {
        int64_t n = positions[q] / plane, base = n * width * plane + positions[q] % plane;
        for (int64_t e = begins[q]; e < begins[q + 1]; e++) {
            out[e] = base + channels[e] * plane;
            sample[e] = n;
        }
    }
    Py_RETURN_NONE;
}

/* --- where a layer's outputs read ------------------------------------------------------------------------------- */

/* As `neuron_layers.plan` states it. plan(out_positions, places, map, in_positions, taps, geometry …) → number of input positions.
   map (samples × input plane) is scratch; taps[q · kernel + t] becomes the row of the input position that tap t of output
   position q reads, −1 in the padding. */
ENTRY(plan) {
    (void)self;
    array a_positions, a_map, a_in_positions, a_taps;
    int64_t places;
    geometry g;
    if (!READ(plan, &a_positions, &places, &a_map, &a_in_positions, &a_taps, &g))
        return NULL;
    const int64_t *positions = a_positions.data;
    int32_t *map = a_map.data, *taps = a_taps.data;
    int64_t *in_positions = a_in_positions.data;
    int64_t out_plane = plane_of(g.out), rows = 0;
    if (a_map.size > INT32_MAX) return refuse(PyExc_ValueError, "plan", "the input has 2³¹ positions or more");
    const char *fault = NULL;
    Py_BEGIN_ALLOW_THREADS
    if (a_map.size) memset(map, 0xff, (size_t)a_map.size * sizeof *map); /* of nothing there may be no address */
    int32_t *tap = taps;
    for (int64_t q = 0; q < places; q++) { /* first the input positions themselves ... */
        if (outside(positions[q], g.samples * out_plane)) {
            fault = "a position lies outside the tensor";
            break;
        }
        int64_t n = positions[q] / out_plane, o = positions[q] % out_plane;
        int64_t o0 = o / (g.out[1] * g.out[2]), o1 = o / g.out[2] % g.out[1], o2 = o % g.out[2];
        for (int64_t k0 = 0; k0 < g.kernel[0]; k0++)
            for (int64_t k1 = 0; k1 < g.kernel[1]; k1++)
                for (int64_t k2 = 0; k2 < g.kernel[2]; k2++) {
                    int64_t i0 = o0 * g.stride[0] - g.padding[0] + k0 * g.dilation[0];
                    int64_t i1 = o1 * g.stride[1] - g.padding[1] + k1 * g.dilation[1];
                    int64_t i2 = o2 * g.stride[2] - g.padding[2] + k2 * g.dilation[2];
                    int padded = outside(i0, g.in[0]) | outside(i1, g.in[1]) | outside(i2, g.in[2]);
                    *tap = padded ? -1 : (int32_t)(((n * g.in[0] + i0) * g.in[1] + i1) * g.in[2] + i2);
                    if (!padded) map[*tap] = 0;
                    tap++;
                }
    }
    for (int64_t i = 0; !fault && i < a_map.size; i++)
        if (map[i] == 0) {
            if (rows == a_in_positions.size) {
                fault = "more input positions are read than there is room for";
                break;
            }
            in_positions[rows] = i;
            map[i] = (int32_t)rows++;
        }
    for (int64_t t = 0; !fault && t < a_taps.size; t++) /* ... then their rows */
        if (taps[t] >= 0) taps[t] = map[taps[t]];
    Py_END_ALLOW_THREADS
    if (fault) return refuse(PyExc_IndexError, "plan", fault);
    return PyLong_FromLongLong(rows);
}

typedef struct {
    const float *x;
    const int64_t *flat;
    int64_t neurons, planes, in_plane, out_plane;
    int64_t *winner;
    geometry g;
    int axis, narrow; /* the only one that counts, or −1; every number fits 32 bits, whose division is cheaper */
    atomic_int failed;
} winning;

enum { WON = 2048 }; /* neurons per item */

/* `winner_of` where all axes but one have a single place; a larger input takes over without a branch, which could not be
   foreseen. */
INLINE int64_t winner_on_line(const float *x, const geometry *g, int axis, int64_t o) {
    int64_t step = g->dilation[axis], i = o * g->stride[axis] - g->padding[axis], end = i + g->kernel[axis] * step;
    while (i < 0 && i < end) i += step;
    if (end > g->in[axis]) end = g->in[axis];
    if (i >= end) return -1;
    int64_t best = i;
    float most = x[i];
    for (i += step; i < end; i += step) {
        int larger = x[i] > most;
        best = larger ? i : best;
        most = larger ? x[i] : most;
    }
    return best;
}

/* The axis along which a pool works if it works along one; −1 if along several. */
static int only_axis(const geometry *g) {
    int axis = 0;
    for (int a = 1; a < 3; a++)
        if ((g->in[a] | g->kernel[a] | g->out[a]) > 1) axis = a;
    for (int a = 0; a < 3; a++)
        if (a != axis && (g->in[a] != 1 || g->kernel[a] != 1 || g->out[a] != 1 || g->padding[a] != 0)) return -1;
    return axis;
}

static void win_some(void *context, int64_t item) {
    winning *w = context;
    const geometry *g = &w->g;
    int64_t to = (item + 1) * WON < w->neurons ? (item + 1) * WON : w->neurons;
    for (int64_t e = item * WON; e < to; e++) {
        int64_t n = w->flat[e];
        if (outside(n, w->planes * w->out_plane)) { /* before the division: of no planes, none is too large for 32 bits */
            atomic_store(&w->failed, 1);
            return;
        }
        int64_t plane = w->narrow ? (uint32_t)n / (uint32_t)w->out_plane : n / w->out_plane, o = n - plane * w->out_plane;
        const float *x = w->x + plane * w->in_plane;
        w->winner[e] = w->axis >= 0
                           ? winner_on_line(x, g, w->axis, o)
                           : winner_of(x, g, o / (g->out[1] * g->out[2]), o / g->out[2] % g->out[1], o % g->out[2]);
    }
}

/* The winners of a max pool under single neurons: the place of the first largest input of each window, −1 where there is
   none. winners(x, flat, neurons, out, threads, geometry …); `flat` is where the neurons stand in the pool's output. */
ENTRY(winners) {
    (void)self;
    array x, flat, out;
    int64_t threads;
    winning w = {0};
    if (!READ(winners, &x, &flat, &w.neurons, &out, &threads, &w.g)) return NULL;
    w.x = x.data, w.flat = flat.data, w.winner = out.data;
    w.in_plane = plane_of(w.g.in), w.out_plane = plane_of(w.g.out);
    w.planes = w.in_plane ? x.size / w.in_plane : 0;
    if (times(w.planes, w.out_plane) >> BITS) return refuse(PyExc_ValueError, "winners", TOO_LARGE);
    w.narrow = w.planes * w.out_plane <= UINT32_MAX;
    w.axis = only_axis(&w.g);
    if (w.neurons && !w.out_plane) return refuse(PyExc_IndexError, "winners", "a neuron lies outside the pool's output");
    if (w.neurons < 4 * WON) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    parallel(win_some, &w, (w.neurons + WON - 1) / WON, threads);
    Py_END_ALLOW_THREADS
    if (w.failed) return refuse(PyExc_IndexError, "winners", "a neuron lies outside the pool's output");
    Py_RETURN_NONE;
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

typedef struct {
    float *x;
    const int64_t *positions;
    int64_t channels, plane, places, count; /* places: of all samples; count: of the positions */
    float *rows;
    atomic_int failed;
} gathering;

enum { GATHERED = 64 }; /* positions per item */

/* Where the first channel of each position stands; 0 if a position lies outside. */
INLINE int bases_of(gathering *g, int64_t from, int64_t to, int64_t base[GATHERED]) {
    for (int64_t p = from; p < to; p++) {
        if (outside(g->positions[p], g->places)) {
            atomic_store(&g->failed, 1);
            return 0;
        }
        int64_t n = g->positions[p] / g->plane, i = g->positions[p] % g->plane;
        base[p - from] = n * g->channels * g->plane + i;
    }
    return 1;
}

static void gather_some(void *context, int64_t item) {
    gathering *g = context;
    int64_t from = item * GATHERED, to = from + GATHERED < g->count ? from + GATHERED : g->count;
    int64_t base[GATHERED];
    if (!bases_of(g, from, to, base)) return;
    for (int64_t c0 = 0; c0 < g->channels; c0 += 16) { /* one line of the cache per row at a time */
        int64_t c1 = c0 + 16 < g->channels ? c0 + 16 : g->channels;
        for (int64_t p = from; p < to; p++) {
            const float *x = g->x + base[p - from];
            float *row = g->rows + p * g->channels;
            for (int64_t c = c0; c < c1; c++) row[c] = x[c * g->plane];
        }
    }
}

static void spread_some(void *context, int64_t item) {
    gathering *g = context;
    int64_t from = item * GATHERED, to = from + GATHERED < g->count ? from + GATHERED : g->count;
    int64_t base[GATHERED];
    if (!bases_of(g, from, to, base)) return;
    for (int64_t p = from; p < to; p++) {
        float *x = g->x + base[p - from];
        const float *row = g->rows + p * g->channels;
        for (int64_t c = 0; c < g->channels; c++) x[c * g->plane] = row[c];
    }
}

static PyObject *between(const char *entry, task some, int64_t alone_below, PyObject *const *given, Py_ssize_t count) {
    array x, positions, rows;
    int64_t threads;
    gathering g = {0};
    if (!read_arguments(entry, given, count, format_gather, &x, &positions, &g.count, &g.channels, &g.plane, &rows, &threads))
        return NULL;
    g.x = x.data, g.positions = positions.data, g.rows = rows.data;
    g.places = g.channels ? x.size / g.channels : 0;
    if (g.places && (!g.plane || g.places % g.plane))
        return refuse(PyExc_ValueError, entry, "the tensor is no whole number of planes");
    if (g.count * g.channels < alone_below) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    parallel(some, &g, (g.count + GATHERED - 1) / GATHERED, threads);
    Py_END_ALLOW_THREADS
    if (g.failed) return refuse(PyExc_IndexError, entry, "a position lies outside the tensor");
    Py_RETURN_NONE;
}

/* gather(x, positions, count, channels, plane, rows, threads): rows of a tensor (samples, channels, plane) */
ENTRY(gather) {
    (void)self;
    return between("gather", gather_some, 1 << 16, given, count);
}

/* spread(x, positions, count, channels, plane, rows, threads): the inverse of gather */
ENTRY(spread) {
    (void)self;
    return between("spread", spread_some, 1 << 15, given, count);
}

/* Add relevance to rows, as `neurons.add` states it. add(total, width, where, count, values, begins, channels): row
   where[q] takes values[q], or with `begins`, the neurons begins[q] … begins[q + 1] at their channels */
ENTRY(add) {
    (void)self;
    array a_total, a_where, a_values, a_begins, a_channels;
    int64_t width, size;
    if (!READ(add, &a_total, &width, &a_where, &size, &a_values, &a_begins, &a_channels))
        return NULL;
    float *total = a_total.data;
    const int64_t *where = a_where.data, *begins = a_begins.data;
    const float *values = a_values.data;
    const int32_t *channels = a_channels.data;
    int64_t rows = width ? a_total.size / width : 0;
    if ((a_begins.size < 0) != (a_channels.size < 0))
        return refuse(PyExc_ValueError, "add", "`begins` and `channels` come together");
    if (begins && !ascending(begins, size, a_channels.size))
        return refuse(PyExc_IndexError, "add", "`begins` do not part the neurons");
    if (begins && channels_outside(channels, a_channels.size, width))
        return refuse(PyExc_IndexError, "add", "a channel lies outside the tensor");
    for (int64_t q = 0; q < size; q++)
        if (outside(where[q], rows)) return refuse(PyExc_IndexError, "add", "a row lies outside the total");
    Py_BEGIN_ALLOW_THREADS
    for (int64_t q = 0; q < size; q++) {
        float *row = total + where[q] * width;
        if (begins)
            for (int64_t e = begins[q]; e < begins[q + 1]; e++) row[channels[e]] += values[e];
        else
            for (int64_t c = 0; c < width; c++) row[c] += values[q * width + c];
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
