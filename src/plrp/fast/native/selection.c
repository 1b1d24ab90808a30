/* Selection: θ with masses and counts, and the survivors. */

#include "loops.h"

/* --- selection of θ --------------------------------------------------------------------------------------------- */

/* As `selection.statistics` and `pruning.ascending` state it. C(v) is the sum of all entries ≤ v: sums per binary exponent,
   added in ascending order in float64. Sums within an exponent are exact, so they may be taken in any order. θ is found digit by digit: sums over 2048 bins of the upper
   eleven bits (exponent and three bits of the mantissa) tell in which bin C passes the limit, then eleven more bits
   within it, then the last nine, where a bin is one value. */

enum { BINS = 2048, COPIES = 2, CHUNK = 2048, SCANNED = 32 };
INLINE float float_of(uint32_t u) {
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

enum { STATS = 8 }; /* θ⁺ θ⁻, mass before ⁺ ⁻, mass pruned ⁺ ⁻, entries ≠ 0, survivors */

typedef struct { /* of a row: what one thread looks at */
    const float *values;
    int64_t size, entries, survivors;
    double (*sums)[2 * BINS]; /* of the upper bits, COPIES times: positive entries, then negative ones */
    uint32_t *inside[2];      /* per sign: the entries of the bin in which C passes the limit, without their sign */
    int64_t found[2];
} piece;

typedef struct { /* for θ of one sign */
    int open;            /* whether there is anything to prune */
    uint32_t bin;        /* in which C passes the limit */
    double limit;        /* p · C(max) */
    double lower, within, c; /* C below the bin: by lower exponents, and by its own; and their sum as C has it */
} search;

typedef struct {
    piece *pieces;
    search searches[2];
    const double *shares; /* p⁺ and p⁻ */
    double *stats;
} row;

FOR_THIS_MACHINE
static void fill(piece *p) {
    float few[CHUNK];
    int copies = p->size < 1 << 15 ? 1 : COPIES;
    for (int64_t from = 0; from < p->size; from += CHUNK) {
        int64_t size = from + CHUNK < p->size ? CHUNK : p->size - from, m = 0, i = 0;
        const float *v = p->values + from;
        for (i = 0; i < size; i++) m += v[i] != 0;
        p->entries += m;
        if (m < size) { /* zeros, of which there may be many, would all wait for one bin */
            int64_t n = 0;
            for (i = 0; i < size; i += SCANNED) {
                int64_t end = i + SCANNED < size ? i + SCANNED : size;
                int any = 0;
                for (int64_t j = i; j < end; j++) any |= v[j] != 0;
                for (int64_t j = i; any && j < end; j++) {
                    few[n] = v[j];
                    n += v[j] != 0;
                }
            }
            v = few;
        }
        i = 0;
        for (; copies == COPIES && i + COPIES <= m; i += COPIES)
            for (int c = 0; c < COPIES; c++) /* copies, so that neighbours of one bin need not wait for each other */
                p->sums[c][bits_of(v[i + c]) >> 20] += fabsf(v[i + c]);
        for (; i < m; i++) p->sums[0][bits_of(v[i]) >> 20] += fabsf(v[i]);
    }
}

/* The first filled bin at which C exceeds the limit, the last one if there is none; `c` is C below it, and `within` what
   of that belongs to the exponent it lies in. */
static uint32_t crossing(const double *sums, search *s, int per_exponent) {
    double base = s->lower, inside = s->within, before = s->c;
    uint32_t last = 0;
    for (uint32_t b = 0; b < BINS; b++) {
        if (per_exponent && b % (uint32_t)per_exponent == 0) {
            base += inside;
            inside = 0;
        }
        if (sums[b] == 0) continue;
        last = b;
        s->lower = base;
        s->within = inside;
        s->c = before;
        if (base + (inside + sums[b]) > s->limit) break;
        inside += sums[b];
        before = base + inside;
    }
    return last;
}

/* The mass of one sign, and the bin in which θ is to be looked for. */
static void open_search(row *r, int64_t pieces, int sign) {
    double sums[BINS] = {0}, total = 0;
    for (int64_t i = 0; i < pieces; i++)
        for (int c = 0; c < (r->pieces[i].size < 1 << 15 ? 1 : COPIES); c++)
            for (int b = 0; b < BINS; b++) sums[b] += r->pieces[i].sums[c][sign * BINS + b];
    int filled = 0;
    for (int e = 0; e < BINS / 8; e++) {
        double exponent = 0;
        for (int b = 8 * e; b < 8 * e + 8; b++) exponent += sums[b];
        filled |= exponent != 0;
        total += exponent;
    }
    r->stats[2 + sign] = total;
    search *s = &r->searches[sign];
    *s = (search){.open = filled && r->shares[sign] != 0, .limit = r->shares[sign] * total};
    if (s->open) s->bin = crossing(sums, s, 8);
}

/* The entries of the bins in which θ⁺ and θ⁻ are to be looked for. */
FOR_THIS_MACHINE
static int look_inside(piece *p, const search *s) {
    const uint32_t nothing = UINT32_MAX;
    uint32_t keys[2] = {s[0].open ? s[0].bin : nothing, s[1].open ? BINS | s[1].bin : nothing};
    for (int sign = 0; sign < 2; sign++)
        if (s[sign].open && !(p->inside[sign] = malloc((size_t)(p->size + 1) * sizeof(uint32_t)))) return 0;
    uint32_t waste[1], *up = s[0].open ? p->inside[0] : waste, *down = s[1].open ? p->inside[1] : waste;
    int64_t m = 0, n = 0;
    for (int64_t i = 0; i < p->size; i += SCANNED) {
        int64_t end = i + SCANNED < p->size ? i + SCANNED : p->size;
        int any = 0;
        for (int64_t j = i; j < end; j++) {
            uint32_t key = bits_of(p->values[j]) >> 20;
            any |= (key == keys[0]) | (key == keys[1]);
        }
        for (int64_t j = i; any && j < end; j++) {
            uint32_t u = bits_of(p->values[j]), key = u >> 20;
            up[m] = down[n] = u & 0x7fffffffu;
            m += key == keys[0];
            n += key == keys[1];
        }
    }
    p->found[0] = m;
    p->found[1] = n;
    return 1;
}

/* θ of one sign, and C(θ). */
static void close_search(row *r, int64_t pieces, int sign) {
    search *s = &r->searches[sign];
    if (!s->open) return;
    double fine[BINS] = {0};
    for (int64_t i = 0; i < pieces; i++) {
        const uint32_t *inside = r->pieces[i].inside[sign];
        for (int64_t k = 0; k < r->pieces[i].found[sign]; k++) fine[inside[k] >> 9 & 2047] += float_of(inside[k]);
    }
    uint32_t middle = crossing(fine, s, 0);
    memset(fine, 0, sizeof fine);
    for (int64_t i = 0; i < pieces; i++) {
        const uint32_t *inside = r->pieces[i].inside[sign];
        for (int64_t k = 0; k < r->pieces[i].found[sign]; k++)
            if ((inside[k] >> 9 & 2047) == middle) fine[inside[k] & 511] += float_of(inside[k]);
    }
    /* The entry at which C exceeds the limit (or the largest): θ is the largest entry below it, and C there is c. */
    uint32_t least_survivor = s->bin << 20 | middle << 9 | crossing(fine, s, 0), theta = 0;
    for (int64_t i = 0; i < pieces; i++) {
        const uint32_t *inside = r->pieces[i].inside[sign];
        for (int64_t k = 0; k < r->pieces[i].found[sign]; k++)
            if (inside[k] < least_survivor && inside[k] > theta) theta = inside[k];
    }
    for (int64_t i = 0, here = theta != 0; !here && i < pieces; i++) /* none in this bin: in any below it */
        for (int64_t k = 0; k < r->pieces[i].size; k++) {
            uint32_t u = bits_of(r->pieces[i].values[k]), a = u & 0x7fffffffu;
            if ((int)(u >> 31) == sign && a < least_survivor && a > theta) theta = a;
        }
    r->stats[sign] = float_of(theta);
    r->stats[4 + sign] = theta ? s->c : 0;
}

FOR_THIS_MACHINE
static int64_t count_above(const float *v, int64_t n, float up, float down) {
    int64_t survivors = 0;
    for (int64_t i = 0; i < n; i++) survivors += (v[i] > up) | (v[i] < down);
    return survivors;
}

static void count_survivors(piece *p, const double *stats) {
    p->survivors = p->entries;
    if (stats[4] != 0 || stats[5] != 0) p->survivors = count_above(p->values, p->size, (float)stats[0], -(float)stats[1]);
}

typedef struct {
    row *rows;
    int64_t count, pieces; /* rows, and pieces of each */
    atomic_int failed;
} selection;

static int make_room(piece *p) {
    size_t copies = p->size < 1 << 15 ? 1 : COPIES;
    return (p->sums = calloc(copies, sizeof *p->sums)) != NULL;
}

static void clear(piece *p) {
    free(p->sums), free(p->inside[0]), free(p->inside[1]);
    p->sums = NULL, p->inside[0] = p->inside[1] = NULL;
}

enum { FEW = 64 }; /* a row as short is sorted: clearing bins would take longer */

/* θ, masses and counts of one sign of a short row. */
static void sort_sign(row *r, int sign) {
    const piece *p = r->pieces;
    uint32_t few[FEW];
    int count = 0;
    for (int64_t i = 0; i < p->size; i++) {
        uint32_t u = bits_of(p->values[i]), a = u & 0x7fffffffu;
        if (!a || (int)(u >> 31) != sign) continue;
        int k = count++;
        for (; k > 0 && few[k - 1] > a; k--) few[k] = few[k - 1];
        few[k] = a;
    }
    double total = 0, inside = 0;
    for (int k = 0; k < count; k++) {
        if (k && few[k] >> 23 != few[k - 1] >> 23) total += inside, inside = 0;
        inside += float_of(few[k]);
    }
    total += inside;
    r->stats[2 + sign] = total;
    if (!count || r->shares[sign] == 0) return;
    double limit = r->shares[sign] * total, base = 0, before = 0;
    uint32_t theta = 0;
    inside = 0;
    for (int k = 0, next; k < count && few[k] < few[count - 1]; k = next) { /* value by value, ties together */
        if (k && few[k] >> 23 != few[k - 1] >> 23) base += inside, inside = 0;
        for (next = k; next < count && few[next] == few[k]; next++) inside += float_of(few[k]);
        if (base + inside > limit) break;
        theta = few[k];
        before = base + inside;
    }
    r->stats[sign] = float_of(theta);
    r->stats[4 + sign] = before;
}

/* A row that one thread has for itself is read again and again while it is in the cache. */
static void select_row(void *context, int64_t item) {
    selection *s = context;
    row *r = &s->rows[item];
    if (r->pieces->size <= FEW) {
        for (int64_t i = 0; i < r->pieces->size; i++) r->pieces->entries += r->pieces->values[i] != 0;
        for (int sign = 0; sign < 2; sign++) sort_sign(r, sign);
        count_survivors(r->pieces, r->stats);
        return;
    }
    if (make_room(r->pieces)) {
        fill(r->pieces);
        for (int sign = 0; sign < 2; sign++) open_search(r, 1, sign);
        if (look_inside(r->pieces, r->searches)) {
            for (int sign = 0; sign < 2; sign++) close_search(r, 1, sign);
            count_survivors(r->pieces, r->stats);
            clear(r->pieces);
            return;
        }
    }
    clear(r->pieces);
    atomic_store(&s->failed, 1);
}

/* Else the threads share a row, and wait for each other between the steps. */
static void fill_piece(void *context, int64_t item) {
    selection *s = context;
    piece *p = &s->rows[item / s->pieces].pieces[item % s->pieces];
    if (make_room(p))
        fill(p);
    else
        atomic_store(&s->failed, 1);
}

static void open_sign(void *context, int64_t item) {
    selection *s = context;
    open_search(&s->rows[item / 2], s->pieces, (int)(item % 2));
}

static void look_inside_piece(void *context, int64_t item) {
    selection *s = context;
    row *r = &s->rows[item / s->pieces];
    if (!look_inside(&r->pieces[item % s->pieces], r->searches)) atomic_store(&s->failed, 1);
}

static void close_sign(void *context, int64_t item) {
    selection *s = context;
    close_search(&s->rows[item / 2], s->pieces, (int)(item % 2));
}

static void count_piece(void *context, int64_t item) {
    selection *s = context;
    row *r = &s->rows[item / s->pieces];
    count_survivors(&r->pieces[item % s->pieces], r->stats);
}

static void select_shared(selection *s, int64_t threads) {
    int64_t pieces = s->count * s->pieces;
    parallel(fill_piece, s, pieces, threads);
    if (!s->failed) parallel(open_sign, s, s->count * 2, threads);
    if (!s->failed) parallel(look_inside_piece, s, pieces, threads);
    if (!s->failed) parallel(close_sign, s, s->count * 2, threads);
    if (!s->failed) parallel(count_piece, s, pieces, threads);
    for (int64_t i = 0; i < pieces; i++) clear(&s->rows[i / s->pieces].pieces[i % s->pieces]);
}

/* select(values, offsets, rows, shares, stats, threads): row n has the entries offsets[n] … offsets[n + 1], p⁺ and p⁻ */
ENTRY(select) {
    (void)self;
    array values, offset, share, stat;
    int64_t rows, threads;
    if (!READ(select, &values, &offset, &rows, &share, &stat, &threads)) return NULL;
    const int64_t *offsets = offset.data;
    double *shares = share.data, *stats = stat.data;
    if (!ascending(offsets, rows, values.size))
        return refuse(PyExc_IndexError, "select", "offsets do not ascend within the values");
    if (offsets[rows] - offsets[0] < 1 << 16) threads = 1;
    selection s = {.count = rows, .pieces = rows >= threads ? 1 : threads};
    s.rows = calloc((size_t)(s.count + 1), sizeof *s.rows);
    piece *pieces = calloc((size_t)(s.count * s.pieces + 1), sizeof *pieces);
    if (s.rows && pieces) {
        Py_BEGIN_ALLOW_THREADS
        for (int64_t n = 0; n < s.count; n++) {
            row *r = &s.rows[n];
            *r = (row){.pieces = pieces + n * s.pieces, .shares = shares + 2 * n, .stats = stats + n * STATS};
            int64_t each = offsets[n + 1] - offsets[n];
            for (int64_t i = 0; i < s.pieces; i++) {
                int64_t from = each * i / s.pieces, to = each * (i + 1) / s.pieces;
                r->pieces[i] = (piece){.values = (const float *)values.data + offsets[n] + from, .size = to - from};
            }
        }
        if (s.pieces == 1)
            parallel(select_row, &s, s.count, threads);
        else
            select_shared(&s, threads);
        for (int64_t i = 0; i < s.count * s.pieces; i++) {
            stats[i / s.pieces * STATS + 6] += (double)pieces[i].entries;
            stats[i / s.pieces * STATS + 7] += (double)pieces[i].survivors;
        }
        Py_END_ALLOW_THREADS
    } else {
        s.failed = 1;
    }
    free(s.rows);
    free(pieces);
    if (s.failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* --- survivors -------------------------------------------------------------------------------------------------- */

typedef struct {
    float up, down;             /* survivors: v > up or v < down */
    float scale_up, scale_down; /* and multiplied by */
} keeping;

/* λ as `pruning.Cut.scales` states it. */
static keeping keeping_of(const double *stats, int rescale) {
    keeping k = {(float)stats[0], -(float)stats[1], 1, 1};
    if (rescale && stats[6] != stats[7]) {
        double after_up = stats[2] - stats[4], after_down = stats[3] - stats[5];
        if (after_up > 0) k.scale_up = (float)(stats[2] / after_up);
        if (after_down > 0) k.scale_down = (float)(stats[3] / after_down);
    }
    return k;
}

INLINE int survives(const keeping *k, float v) { return (v > k->up) | (v < k->down); }
INLINE float scaled(const keeping *k, float v) { return v * (v > 0 ? k->scale_up : k->scale_down); }

typedef struct {
    const float *values;
    const double *stats;
    int64_t each;
    float *out;
} thinning;

enum { THINNED = 1 << 15 }; /* entries per item */

FOR_THIS_MACHINE
static void thin_some(void *context, int64_t item) {
    thinning *t = context;
    int64_t pieces = (t->each + THINNED - 1) / THINNED, row = item / pieces, from = item % pieces * THINNED;
    int64_t to = from + THINNED < t->each ? from + THINNED : t->each;
    keeping k = keeping_of(t->stats + row * STATS, 1);
    const float *v = t->values + row * t->each;
    float *out = t->out + row * t->each;
    for (int64_t i = from; i < to; i++) {
        float up = v[i] > k.up ? v[i] * k.scale_up : 0, down = v[i] < k.down ? v[i] * k.scale_down : 0;
        out[i] = up + down;
    }
}

/* The survivors in place, times λ, as `neurons.thin` states it. thin(values, rows, each, stats, out, threads) */
ENTRY(thin) {
    (void)self;
    array values, stats, out;
    int64_t rows, each, threads;
    if (!READ(thin, &values, &rows, &each, &stats, &out, &threads)) return NULL;
    thinning t = {values.data, stats.data, each, out.data};
    Py_BEGIN_ALLOW_THREADS
    parallel(thin_some, &t, rows * ((each + THINNED - 1) / THINNED), rows * each < 1 << 16 ? 1 : threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Rows (positions × channels) are looked through in sheaves. */
enum { SHEAF = 128, GLANCE = 16 }; /* rows of a sheaf, and entries looked at together: most such hold no survivor */

typedef struct {
    const float *values;
    const int64_t *positions, *offsets;
    int64_t rows, samples, channels;
    const double *stats;
    int rescale;
    int64_t (*found)[2]; /* per sheaf: rows that hold survivors, and survivors; then how many there are before it */
    int64_t *out_positions, *begins;
    int32_t *out_channels;
    float *out_values;
} gleaning;

INLINE int64_t sample_of(const gleaning *g, int64_t row) {
    int64_t n = 0;
    while (g->offsets[n + 1] <= row) n++;
    return n;
}

FOR_THIS_MACHINE
static void measure_sheaf(void *context, int64_t item) {
    gleaning *g = context;
    int64_t to = (item + 1) * SHEAF < g->rows ? (item + 1) * SHEAF : g->rows, last = -1;
    keeping k = {0, 0, 1, 1};
    for (int64_t row = item * SHEAF; row < to; row++) {
        int64_t n = last >= 0 && g->offsets[last + 1] > row ? last : sample_of(g, row);
        if (n != last) k = keeping_of(g->stats + (last = n) * STATS, 0);
        const float *v = g->values + row * g->channels;
        int32_t count = 0;
        for (int64_t c = 0; c < g->channels; c++) count += survives(&k, v[c]);
        g->found[item][0] += count != 0;
        g->found[item][1] += count;
    }
}

FOR_THIS_MACHINE
static void glean_sheaf(void *context, int64_t item) {
    gleaning *g = context;
    int64_t to = (item + 1) * SHEAF < g->rows ? (item + 1) * SHEAF : g->rows, last = -1;
    int64_t places = g->found[item][0], neurons = g->found[item][1];
    if (places == g->found[item + 1][0]) return;
    keeping k = {0, 0, 1, 1};
    for (int64_t row = item * SHEAF; row < to; row++) {
        int64_t n = last >= 0 && g->offsets[last + 1] > row ? last : sample_of(g, row), first = neurons, c = 0;
        if (n != last) k = keeping_of(g->stats + (last = n) * STATS, g->rescale);
        const float *v = g->values + row * g->channels;
        for (; c < g->channels; c += GLANCE) {
            int64_t end = c + GLANCE < g->channels ? c + GLANCE : g->channels;
            int any = 0;
            for (int64_t i = c; i < end; i++) any |= survives(&k, v[i]);
            if (!any) continue;
            for (int64_t i = c; i < end; i++)
                if (survives(&k, v[i])) {
                    g->out_channels[neurons] = (int32_t)i;
                    g->out_values[neurons++] = scaled(&k, v[i]);
                }
        }
        if (neurons == first) continue;
        g->out_positions[places] = g->positions[row];
        g->begins[places++] = first;
    }
}

/* How many there are before each of `items`, from how many each has; returns all. */
static void running(int64_t (*found)[2], int64_t items, int64_t total[2]) {
    total[0] = total[1] = 0;
    for (int64_t i = 0; i <= items; i++)
        for (int n = 0; n < 2; n++) {
            int64_t more = found[i][n];
            found[i][n] = total[n];
            total[n] += more;
        }
}

typedef struct {
    array positions, begins, channels, values;
} room; /* for survivors: as many as the caller counted */

static int fits(const room *r, const int64_t total[2]) {
    return total[0] <= r->positions.size && total[0] < r->begins.size && total[1] <= r->channels.size &&
           total[1] <= r->values.size;
}

static const char *const TOO_MANY = "more survivors than the statistics count";

/* Survivors of rows (positions × channels), as `neurons.survivors` states them. collect_rows(values, positions, offsets,
   samples, channels, stats, rescale, out_positions, out_begins, out_channels, out_values, threads) → number of positions */
ENTRY(collect_rows) {
    (void)self;
    array values, positions, offsets, stats;
    room out;
    int64_t threads, total[2];
    gleaning g = {0};
    if (!READ(collect_rows, &values, &positions, &offsets, &g.samples, &g.channels,
                        &stats, &g.rescale, &out.positions, &out.begins, &out.channels, &out.values, &threads))
        return NULL;
    g.values = values.data, g.positions = positions.data, g.offsets = offsets.data, g.stats = stats.data;
    g.out_positions = out.positions.data, g.begins = out.begins.data;
    g.out_channels = out.channels.data, g.out_values = out.values.data;
    g.rows = g.offsets[g.samples];
    if (!ascending(g.offsets, g.samples, positions.size) || g.offsets[0] != 0)
        return refuse(PyExc_IndexError, "collect_rows", "offsets do not ascend from 0 within the positions");
    int64_t items = (g.rows + SHEAF - 1) / SHEAF;
    if (g.rows * g.channels < 1 << 16) threads = 1;
    g.found = calloc((size_t)(items + 1), sizeof *g.found);
    if (!g.found) return PyErr_NoMemory();
    int room_enough;
    Py_BEGIN_ALLOW_THREADS
    parallel(measure_sheaf, &g, items, threads);
    running(g.found, items, total);
    room_enough = fits(&out, total);
    if (room_enough) {
        parallel(glean_sheaf, &g, items, threads);
        g.begins[total[0]] = total[1];
    }
    Py_END_ALLOW_THREADS
    free(g.found);
    if (!room_enough) return refuse(PyExc_ValueError, "collect_rows", TOO_MANY);
    return PyLong_FromLongLong(total[0]);
}

/* A tensor is looked through in stripes: so many places of the plane, all channels of each. */
enum { STRIPE = 1024 };

typedef struct {
    const float *values;
    int64_t channels, plane, stripes; /* stripes per sample */
    const double *stats;
    int rescale;
    int32_t (*counts)[STRIPE]; /* survivors at each place */
    int64_t (*found)[2];       /* per stripe: places and neurons; then how many there are before it */
    int64_t *positions, *begins;
    int32_t *out_channels;
    float *out_values;
} collection;

FOR_THIS_MACHINE
static void measure_stripe(void *context, int64_t item) {
    collection *s = context;
    int64_t sample = item / s->stripes, from = item % s->stripes * STRIPE;
    int64_t size = from + STRIPE < s->plane ? STRIPE : s->plane - from;
    keeping k = keeping_of(s->stats + sample * STATS, 0);
    const float *v = s->values + sample * s->channels * s->plane + from;
    int32_t *counts = s->counts[item];
    for (int64_t c = 0; c < s->channels; c++, v += s->plane)
        for (int64_t i = 0; i < size; i++) counts[i] += survives(&k, v[i]);
    for (int64_t i = 0; i < size; i++) {
        s->found[item][0] += counts[i] != 0;
        s->found[item][1] += counts[i];
    }
}

FOR_THIS_MACHINE
static void collect_stripe(void *context, int64_t item) {
    collection *s = context;
    int64_t places = s->found[item][0], neurons = s->found[item][1];
    if (places == s->found[item + 1][0]) return;
    const int32_t *counts = s->counts[item];
    int64_t next[STRIPE];
    int64_t sample = item / s->stripes, from = item % s->stripes * STRIPE;
    int64_t size = from + STRIPE < s->plane ? STRIPE : s->plane - from;
    for (int64_t i = 0; i < size; i++) {
        next[i] = neurons;
        if (!counts[i]) continue;
        s->positions[places] = sample * s->plane + from + i;
        s->begins[places++] = neurons;
        neurons += counts[i];
    }
    keeping k = keeping_of(s->stats + sample * STATS, s->rescale);
    const float *v = s->values + sample * s->channels * s->plane + from;
    for (int64_t c = 0; c < s->channels; c++, v += s->plane)
        for (int64_t i = 0; i < size; i += GLANCE) {
            int64_t end = i + GLANCE < size ? i + GLANCE : size;
            int any = 0;
            for (int64_t j = i; j < end; j++) any |= survives(&k, v[j]);
            if (!any) continue;
            for (int64_t j = i; j < end; j++)
                if (survives(&k, v[j])) {
                    s->out_channels[next[j]] = (int32_t)c;
                    s->out_values[next[j]++] = scaled(&k, v[j]);
                }
        }
}

/* Survivors of a whole tensor (samples, channels, plane), as `neurons.survivors` states them. collect_dense(values, samples,
   channels, plane, stats, rescale, out_positions, out_begins, out_channels, out_values, threads) → number of positions */
ENTRY(collect_dense) {
    (void)self;
    array values, stats;
    room out;
    int64_t samples, threads, total[2];
    collection s = {0};
    if (!READ(collect_dense, &values, &samples, &s.channels, &s.plane, &stats,
                        &s.rescale, &out.positions, &out.begins, &out.channels, &out.values, &threads))
        return NULL;
    s.values = values.data, s.stats = stats.data, s.stripes = (s.plane + STRIPE - 1) / STRIPE;
    s.positions = out.positions.data, s.begins = out.begins.data;
    s.out_channels = out.channels.data, s.out_values = out.values.data;
    int64_t items = s.channels ? samples * s.stripes : 0;
    if (samples * s.channels * s.plane < 1 << 16) threads = 1;
    s.found = calloc((size_t)(items + 1), sizeof *s.found);
    s.counts = calloc((size_t)(items + 1), sizeof *s.counts);
    if (!s.found || !s.counts) {
        free(s.found);
        free(s.counts);
        return PyErr_NoMemory();
    }
    int room_enough;
    Py_BEGIN_ALLOW_THREADS
    parallel(measure_stripe, &s, items, threads);
    running(s.found, items, total);
    room_enough = fits(&out, total);
    if (room_enough) {
        parallel(collect_stripe, &s, items, threads);
        s.begins[total[0]] = total[1];
    }
    Py_END_ALLOW_THREADS
    free(s.found);
    free(s.counts);
    if (!room_enough) return refuse(PyExc_ValueError, "collect_dense", TOO_MANY);
    return PyLong_FromLongLong(total[0]);
}

/* --- whole tokens ----------------------------------------------------------------------------------------------- */

typedef struct {
    const float *values;
    float *out;
    double *sums; /* (samples, 2, tokens): mass of each sign, then the factor of each sign */
    int64_t tokens, channels;
} pruning;

typedef double wide_lanes __attribute__((vector_size(LANES * sizeof(double))));

/* The parts of both signs; NaN is in both. By masks: signs cannot be foreseen. */
INLINE void part(const lanes *v, lanes *up, lanes *down) {
    *up = (lanes)((__typeof__(*v < 0))*v & ~(*v < 0));
    *down = (lanes)((__typeof__(*v < 0))*v & ~(*v > 0));
}

/* The entries of a token from i on, zero beyond its end. */
INLINE void read_some(const float *token, int64_t i, int64_t channels, lanes *v) {
    if (i + LANES <= channels)
        *v = *(const lanes *)(token + i);
    else
        for (int n = 0; n < LANES; n++) (*v)[n] = i + n < channels ? token[i + n] : 0;
}

/* The mass of both signs of one token. */
FOR_THIS_MACHINE
static void weigh_token(void *context, int64_t item) {
    pruning *p = context;
    const float *token = p->values + item * p->channels;
    wide_lanes ups = {0}, downs = {0};
    double *sums = p->sums + item / p->tokens * 2 * p->tokens + item % p->tokens;
    lanes some, up, down;
    for (int64_t i = 0; i < p->channels; i += LANES) {
        read_some(token, i, p->channels, &some);
        part(&some, &up, &down);
        ups += __builtin_convertvector(up, wide_lanes);
        downs -= __builtin_convertvector(down, wide_lanes);
    }
    sums[0] = sums[p->tokens] = 0;
    for (int n = 0; n < LANES; n++) sums[0] += ups[n], sums[p->tokens] += downs[n];
}

static int by_size(const void *a, const void *b) { /* NaN last */
    double x = *(const double *)a, y = *(const double *)b;
    return isnan(x) || isnan(y) ? isnan(x) - isnan(y) : (x > y) - (x < y);
}

/* As `pruning.threshold` states it. */
static double threshold_of(const double *sums, int64_t n, double share, double *ordered) {
    memcpy(ordered, sums, n * sizeof *sums);
    qsort(ordered, n, sizeof *ordered, by_size);
    double total = 0, c = 0, theta = 0;
    for (int64_t i = 0; i < n; i++) total += ordered[i];
    for (int64_t i = 0; i < n && ordered[i] < ordered[n - 1]; i++) {
        c += ordered[i];
        if (c <= share * total && ordered[i] != ordered[i + 1]) theta = ordered[i];
    }
    return theta;
}

/* The factors of one sample's tokens, in place of their mass. */
static void choose_tokens(double *sums, int64_t tokens, const double *shares, double *ordered) {
    double *mass[] = {sums, sums + tokens}, theta[2], before[2] = {0}, after[2] = {0}, scale[2];
    int pruned = 0;
    for (int s = 0; s < 2; s++) theta[s] = threshold_of(mass[s], tokens, shares[s], ordered);
    for (int64_t t = 0; t < tokens; t++) {
        int stays = mass[0][t] > theta[0] || mass[1][t] > theta[1];
        pruned |= !stays && mass[0][t] + mass[1][t] > 0;
        for (int s = 0; s < 2; s++) before[s] += mass[s][t], after[s] += stays ? mass[s][t] : mass[s][t] * 0;
    }
    for (int s = 0; s < 2; s++) scale[s] = pruned && after[s] > 0 ? before[s] / after[s] : 1;
    for (int64_t t = 0; t < tokens; t++) {
        int stays = mass[0][t] > theta[0] || mass[1][t] > theta[1];
        for (int s = 0; s < 2; s++) mass[s][t] = stays * scale[s];
    }
}

FOR_THIS_MACHINE
static void scale_token(void *context, int64_t item) {
    pruning *p = context;
    const double *factors = p->sums + item / p->tokens * 2 * p->tokens + item % p->tokens;
    const float *v = p->values + item * p->channels;
    float *out = p->out + item * p->channels;
    lanes some, up, down;
    for (int64_t i = 0; i < p->channels; i += LANES) {
        read_some(v, i, p->channels, &some);
        part(&some, &up, &down);
        up = up * (float)factors[0] + down * (float)factors[p->tokens];
        if (i + LANES <= p->channels)
            *(lanes *)(out + i) = up;
        else
            for (int n = 0; i + n < p->channels; n++) out[i + n] = up[n];
    }
}

/* PLRP-λ of whole tokens, as `neuron_pruning.prune_positions` states it in Python: `sums` and `ordered` are room to work in.
   prune_tokens(values, samples, tokens, channels, p, p_negative, sums, ordered, out, threads) */
ENTRY(prune_tokens) {
    (void)self;
    array values, sums, ordered, out;
    int64_t samples, threads;
    double shares[2];
    pruning p = {0};
    if (!READ(prune_tokens, &values, &samples, &p.tokens, &p.channels, &shares[0], &shares[1], &sums, &ordered, &out, &threads))
        return NULL;
    p.values = values.data, p.out = out.data, p.sums = sums.data;
    if (values.size < 1 << 16) threads = 1;
    Py_BEGIN_ALLOW_THREADS
    if (values.size) {
        parallel(weigh_token, &p, samples * p.tokens, threads);
        for (int64_t i = 0; i < samples; i++)
            choose_tokens(p.sums + i * 2 * p.tokens, p.tokens, shares, ordered.data);
        parallel(scale_token, &p, samples * p.tokens, threads);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
