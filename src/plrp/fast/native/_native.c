/* The inner loops of pruned propagation: selection of θ, and layers that follow single neurons.

   Everything here has a twin in Python (selection.py, sparse.py), which is what runs where this file could not be
   compiled. Arrays come as addresses; the callers in native.py own them and have checked their sizes.

   Relevance of few neurons is kept by position: `positions[q]` (sample · plane + place, ascending) holds the neurons
   `begins[q] … begins[q + 1]` of `channels` and `values`. Activations at the positions they touch are gathered into
   rows (positions × channels), so that every inner loop runs over contiguous channels. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && (defined(__GNUC__) && !defined(__clang__))
#define FOR_THIS_MACHINE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_THIS_MACHINE
#endif

enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
#define INLINE static inline __attribute__((always_inline))

/* --- threads ---------------------------------------------------------------------------------------------------- */

typedef void (*task)(void *context, int64_t item);

typedef struct {
    task run;
    void *context;
    int64_t items;
    atomic_llong next;
} queue;

static void drain(queue *q) {
    for (;;) {
        int64_t item = atomic_fetch_add(&q->next, 1);
        if (item >= q->items) return;
        q->run(q->context, item);
    }
}

/* torch's threads, where it works with OpenMP: they are awake already, and would be in the way of others. The function is
   how gcc begins a parallel region, since its version 4.9; the runtimes of clang and Intel have it too. */
static void (*team)(void (*run)(void *), void *context, unsigned threads, unsigned flags);

static void drain_any(void *q) { drain(q); }

/* Else our own. Helpers live as long as the process and sleep between jobs. The caller never waits for a helper that has
   not woken up yet: it takes back its job, and waits only for those that have begun an item. One job is helped with at a
   time; who comes meanwhile works alone. */

enum { MOST_THREADS = 64 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    queue *job;
    int64_t wanted, active, size; /* helpers that may still join, are at it, and exist */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static void *help(void *nothing) {
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.job || !pool.wanted) pthread_cond_wait(&pool.work, &pool.lock);
        queue *q = pool.job;
        pool.wanted--;
        pool.active++;
        pthread_mutex_unlock(&pool.lock);
        drain(q);
        pthread_mutex_lock(&pool.lock);
        if (--pool.active == 0) pthread_cond_broadcast(&pool.done);
    }
    return nothing;
}

static void start_helpers(int64_t count) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of Python */
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (pool.size < count && pthread_create(&thread, &detached, help, NULL) == 0) pool.size++;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* A forked process has no helpers, whatever they were doing, and OpenMP does not know. */
static void forget_helpers(void) {
    team = NULL;
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.job = NULL;
    pool.wanted = pool.active = pool.size = 0;
}

/* Run items 0 … n − 1 on up to `threads` threads; which thread runs which item has no influence on any result. */
static void parallel(task run, void *context, int64_t items, int64_t threads) {
    queue q = {run, context, items, 0};
    if (threads > 1 && items > 1 && team) { /* always all of them: a smaller team would send the others away for good */
        team(drain_any, &q, (unsigned)threads, 0);
        return;
    }
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > items) threads = items;
    int helped = 0;
    if (threads > 1) {
        pthread_mutex_lock(&pool.lock);
        helped = !pool.job && !pool.active;
        if (helped) {
            if (pool.size < threads - 1) start_helpers(threads - 1);
            pool.job = &q;
            pool.wanted = threads - 1;
            pthread_cond_broadcast(&pool.work);
        }
        pthread_mutex_unlock(&pool.lock);
    }
    drain(&q);
    if (helped) {
        pthread_mutex_lock(&pool.lock);
        pool.job = NULL;
        pool.wanted = 0;
        while (pool.active) pthread_cond_wait(&pool.done, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
    }
}

/* --- selection of θ --------------------------------------------------------------------------------------------- */

/* C(v) is the sum of all entries ≤ v: sums per binary exponent, added in ascending order in float64. Sums within an
   exponent are exact, so they may be taken in any order. θ is found digit by digit: sums over 2048 bins of the upper
   eleven bits (exponent and three bits of the mantissa) tell in which bin C passes the limit, then eleven more bits
   within it, then the last nine, where a bin is one value. */

enum { BINS = 2048, COPIES = 2, CHUNK = 2048, SCANNED = 32 };

static inline uint32_t bits_of(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

static inline float float_of(uint32_t u) {
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

enum { STATS = 8 }; /* θ⁺ θ⁻, mass before ⁺ ⁻, mass pruned ⁺ ⁻, entries ≠ 0, entries kept */

typedef struct { /* of a row: what one thread looks at */
    const float *values;
    int64_t size, entries, kept;
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
    uint32_t first_kept = s->bin << 20 | middle << 9 | crossing(fine, s, 0), theta = 0;
    for (int64_t i = 0; i < pieces; i++) {
        const uint32_t *inside = r->pieces[i].inside[sign];
        for (int64_t k = 0; k < r->pieces[i].found[sign]; k++)
            if (inside[k] < first_kept && inside[k] > theta) theta = inside[k];
    }
    for (int64_t i = 0, here = theta != 0; !here && i < pieces; i++) /* none in this bin: in any below it */
        for (int64_t k = 0; k < r->pieces[i].size; k++) {
            uint32_t u = bits_of(r->pieces[i].values[k]), a = u & 0x7fffffffu;
            if ((int)(u >> 31) == sign && a < first_kept && a > theta) theta = a;
        }
    r->stats[sign] = float_of(theta);
    r->stats[4 + sign] = theta ? s->c : 0;
}

FOR_THIS_MACHINE
static int64_t count_kept(const float *v, int64_t n, float up, float down) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) kept += (v[i] > up) | (v[i] < down);
    return kept;
}

static void count_survivors(piece *p, const double *stats) {
    p->kept = p->entries;
    if (stats[4] != 0 || stats[5] != 0) p->kept = count_kept(p->values, p->size, (float)stats[0], -(float)stats[1]);
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

/* A row that one thread has for itself is read again and again while it is in the cache. */
static void select_row(void *context, int64_t item) {
    selection *s = context;
    row *r = &s->rows[item];
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

/* --- arguments -------------------------------------------------------------------------------------------------- */

static int read_numbers(PyObject *const *given, Py_ssize_t count, Py_ssize_t expected, int64_t *numbers) {
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "expected %zd numbers, got %zd", expected, count);
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyFloat_Check(given[i])) { /* as it is; REAL reads it */
            double real = PyFloat_AS_DOUBLE(given[i]);
            memcpy(&numbers[i], &real, sizeof real);
            continue;
        }
        numbers[i] = PyLong_AsLongLong(given[i]);
        if (numbers[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

#define POINTER(type, number) ((type *)(intptr_t)(number))

static double real_of(int64_t number) {
    double real;
    memcpy(&real, &number, sizeof real);
    return real;
}

/* select(values, offsets, rows, shares, stats, threads): row n has the entries offsets[n] … offsets[n + 1], p⁺ and p⁻ */
static PyObject *py_select(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[6];
    if (!read_numbers(given, count, 6, a)) return NULL;
    const float *values = POINTER(const float, a[0]);
    const int64_t *offsets = POINTER(const int64_t, a[1]);
    double *shares = POINTER(double, a[3]), *stats = POINTER(double, a[4]);
    int64_t size = a[2] ? offsets[a[2]] - offsets[0] : 0, threads = size < 1 << 16 ? 1 : a[5];
    selection s = {.count = a[2], .pieces = a[2] >= threads ? 1 : threads};
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
                r->pieces[i] = (piece){.values = values + offsets[n] + from, .size = to - from};
            }
        }
        if (s.pieces == 1)
            parallel(select_row, &s, s.count, threads);
        else
            select_shared(&s, threads);
        for (int64_t i = 0; i < s.count * s.pieces; i++) {
            stats[i / s.pieces * STATS + 6] += (double)pieces[i].entries;
            stats[i / s.pieces * STATS + 7] += (double)pieces[i].kept;
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
    float up, down;             /* kept: v > up or v < down */
    float scale_up, scale_down; /* and multiplied by */
} keeping;

static keeping keeping_of(const double *stats, int rescale) {
    keeping k = {(float)stats[0], -(float)stats[1], 1, 1};
    if (rescale && stats[6] != stats[7]) {
        double after_up = stats[2] - stats[4], after_down = stats[3] - stats[5];
        if (after_up > 0) k.scale_up = (float)(stats[2] / after_up);
        if (after_down > 0) k.scale_down = (float)(stats[3] / after_down);
    }
    return k;
}

static inline int kept(const keeping *k, float v) { return (v > k->up) | (v < k->down); }
static inline float scaled(const keeping *k, float v) { return v * (v > 0 ? k->scale_up : k->scale_down); }

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

/* The survivors in place, times λ. thin(values, rows, each, stats, out, threads) */
static PyObject *py_thin(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[6];
    if (!read_numbers(given, count, 6, a)) return NULL;
    thinning t = {POINTER(const float, a[0]), POINTER(const double, a[3]), a[2], POINTER(float, a[4])};
    Py_BEGIN_ALLOW_THREADS
    parallel(thin_some, &t, a[1] * ((t.each + THINNED - 1) / THINNED), a[1] * a[2] < 1 << 16 ? 1 : a[5]);
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
        for (int64_t c = 0; c < g->channels; c++) count += kept(&k, v[c]);
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
            for (int64_t i = c; i < end; i++) any |= kept(&k, v[i]);
            if (!any) continue;
            for (int64_t i = c; i < end; i++)
                if (kept(&k, v[i])) {
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

/* Survivors of rows (positions × channels). collect_rows(values, positions, offsets, samples, channels, stats, rescale,
   out_positions, out_begins, out_channels, out_values, threads) → number of positions */
static PyObject *py_collect_rows(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[12];
    if (!read_numbers(given, count, 12, a)) return NULL;
    gleaning g = {.values = POINTER(const float, a[0]),
                  .positions = POINTER(const int64_t, a[1]),
                  .offsets = POINTER(const int64_t, a[2]),
                  .samples = a[3],
                  .channels = a[4],
                  .stats = POINTER(const double, a[5]),
                  .rescale = (int)a[6],
                  .out_positions = POINTER(int64_t, a[7]),
                  .begins = POINTER(int64_t, a[8]),
                  .out_channels = POINTER(int32_t, a[9]),
                  .out_values = POINTER(float, a[10])};
    g.rows = g.samples ? g.offsets[g.samples] : 0;
    int64_t items = (g.rows + SHEAF - 1) / SHEAF, threads = g.rows * g.channels < 1 << 16 ? 1 : a[11], total[2];
    g.found = calloc((size_t)(items + 1), sizeof *g.found);
    if (!g.found) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    parallel(measure_sheaf, &g, items, threads);
    running(g.found, items, total);
    parallel(glean_sheaf, &g, items, threads);
    g.begins[total[0]] = total[1];
    Py_END_ALLOW_THREADS
    free(g.found);
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
        for (int64_t i = 0; i < size; i++) counts[i] += kept(&k, v[i]);
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
            for (int64_t j = i; j < end; j++) any |= kept(&k, v[j]);
            if (!any) continue;
            for (int64_t j = i; j < end; j++)
                if (kept(&k, v[j])) {
                    s->out_channels[next[j]] = (int32_t)c;
                    s->out_values[next[j]++] = scaled(&k, v[j]);
                }
        }
}

/* Survivors of a whole tensor (samples, channels, plane). collect_dense(values, samples, channels, plane, stats, rescale,
   out_positions, out_begins, out_channels, out_values, threads) → number of positions */
static PyObject *py_collect_dense(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[11];
    if (!read_numbers(given, count, 11, a)) return NULL;
    collection s = {.values = POINTER(const float, a[0]),
                    .channels = a[2],
                    .plane = a[3],
                    .stripes = (a[3] + STRIPE - 1) / STRIPE,
                    .stats = POINTER(const double, a[4]),
                    .rescale = (int)a[5],
                    .positions = POINTER(int64_t, a[6]),
                    .begins = POINTER(int64_t, a[7]),
                    .out_channels = POINTER(int32_t, a[8]),
                    .out_values = POINTER(float, a[9])};
    int64_t items = a[1] * s.stripes, threads = a[1] * a[2] * a[3] < 1 << 16 ? 1 : a[10], total[2];
    s.found = calloc((size_t)(items + 1), sizeof *s.found);
    s.counts = calloc((size_t)(items + 1), sizeof *s.counts);
    if (!s.found || !s.counts) {
        free(s.found);
        free(s.counts);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    parallel(measure_stripe, &s, items, threads);
    running(s.found, items, total);
    parallel(collect_stripe, &s, items, threads);
    s.begins[total[0]] = total[1];
    Py_END_ALLOW_THREADS
    free(s.found);
    free(s.counts);
    return PyLong_FromLongLong(total[0]);
}

/* Single neurons in any order, brought into the order of positions; what lands on one neuron is added up.
   regroup(at, channels, values, neurons, places, width, out_positions, out_begins, out_channels, out_values) → number of
   positions. `at` are positions < places, `width` is the number of channels. */
static PyObject *py_regroup(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[10];
    if (!read_numbers(given, count, 10, a)) return NULL;
    const int64_t *at = POINTER(const int64_t, a[0]);
    const int32_t *channels = POINTER(const int32_t, a[1]);
    const float *values = POINTER(const float, a[2]);
    int64_t neurons = a[3], places = a[4], width = a[5];
    int64_t *out_positions = POINTER(int64_t, a[6]), *out_begins = POINTER(int64_t, a[7]);
    int32_t *out_channels = POINTER(int32_t, a[8]);
    float *out_values = POINTER(float, a[9]);
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
    for (int64_t i = 0; i < neurons; i++) next[at[i] + 1]++;
    for (int64_t i = 0; i < places; i++) next[i + 1] += next[i];
    for (int64_t i = 0; i < neurons; i++) order[next[at[i]]++] = i; /* now next[p] is where position p ends */
    for (int64_t c = 0; c < width; c++) seen[c] = -1;
    for (int64_t i = 0; i < neurons;) {
        int64_t position = at[order[i]], first = written;
        for (; i < neurons && at[order[i]] == position; i++) {
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
    int64_t size;
    float *out;
} taking;

static void take_some(void *context, int64_t item) {
    taking *t = context;
    int64_t to = (item + 1) * 4096 < t->size ? (item + 1) * 4096 : t->size;
    for (int64_t i = item * 4096; i < to; i++) t->out[i] = t->from[t->index[i]];
}

/* take(from, index, size, out, threads): out[i] = from[index[i]] */
static PyObject *py_take(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[5];
    if (!read_numbers(given, count, 5, a)) return NULL;
    taking t = {POINTER(const float, a[0]), POINTER(const int64_t, a[1]), a[2], POINTER(float, a[3])};
    Py_BEGIN_ALLOW_THREADS
    parallel(take_some, &t, (t.size + 4095) / 4096, t.size < 1 << 15 ? 1 : a[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* The union of two ascending lists of positions, and where each list stands in it.
   union(a, n, b, m, out, where_a, where_b) → number of positions */
static PyObject *py_union(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[7];
    if (!read_numbers(given, count, 7, a)) return NULL;
    const int64_t *first = POINTER(const int64_t, a[0]), *second = POINTER(const int64_t, a[2]);
    int64_t n = a[1], m = a[3], i = 0, j = 0, size = 0;
    int64_t *out = POINTER(int64_t, a[4]), *where_first = POINTER(int64_t, a[5]), *where_second = POINTER(int64_t, a[6]);
    while (i < n || j < m) {
        int64_t next = j >= m || (i < n && first[i] <= second[j]) ? first[i] : second[j];
        if (i < n && first[i] == next) where_first[i++] = size;
        if (j < m && second[j] == next) where_second[j++] = size;
        out[size++] = next;
    }
    return PyLong_FromLongLong(size);
}

/* Where neurons stand in the whole tensor (samples, channels, plane), and of which sample they are.
   flat(positions, begins, places, channels, width, plane, out, out_sample) */
static PyObject *py_flat(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[8];
    if (!read_numbers(given, count, 8, a)) return NULL;
    const int64_t *positions = POINTER(const int64_t, a[0]), *begins = POINTER(const int64_t, a[1]);
    const int32_t *channels = POINTER(const int32_t, a[3]);
    int64_t places = a[2], width = a[4], plane = a[5];
    int64_t *out = POINTER(int64_t, a[6]), *sample = POINTER(int64_t, a[7]);
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

/* plan(out_positions, places, map, in_positions, taps, geometry …) → number of input positions.
   geometry: nineteen numbers, samples, then input, output, kernel, stride, padding, dilation, three numbers each.
   map (samples × input plane) is scratch; taps[q · kernel + t] becomes the row of the input position that tap t of output
   position q reads, −1 in the padding. */
static PyObject *py_plan(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[24];
    if (!read_numbers(given, count, 24, a)) return NULL;
    const int64_t *positions = POINTER(const int64_t, a[0]), *g = a + 5;
    int64_t places = a[1], samples = g[0];
    const int64_t *in = g + 1, *out = g + 4, *kernel = g + 7, *stride = g + 10, *padding = g + 13, *dilation = g + 16;
    int32_t *map = POINTER(int32_t, a[2]), *taps = POINTER(int32_t, a[4]);
    int64_t *in_positions = POINTER(int64_t, a[3]);
    int64_t in_plane = in[0] * in[1] * in[2], out_plane = out[0] * out[1] * out[2], rows = 0;
    Py_BEGIN_ALLOW_THREADS
    memset(map, 0xff, (size_t)(samples * in_plane) * sizeof *map);
    int32_t *tap = taps;
    for (int64_t q = 0; q < places; q++) { /* first the input positions themselves ... */
        int64_t n = positions[q] / out_plane, o = positions[q] % out_plane;
        int64_t o0 = o / (out[1] * out[2]), o1 = o / out[2] % out[1], o2 = o % out[2];
        for (int64_t k0 = 0; k0 < kernel[0]; k0++)
            for (int64_t k1 = 0; k1 < kernel[1]; k1++)
                for (int64_t k2 = 0; k2 < kernel[2]; k2++) {
                    int64_t i0 = o0 * stride[0] - padding[0] + k0 * dilation[0];
                    int64_t i1 = o1 * stride[1] - padding[1] + k1 * dilation[1];
                    int64_t i2 = o2 * stride[2] - padding[2] + k2 * dilation[2];
                    int inside = i0 >= 0 && i0 < in[0] && i1 >= 0 && i1 < in[1] && i2 >= 0 && i2 < in[2];
                    int64_t i = ((n * in[0] + i0) * in[1] + i1) * in[2] + i2;
                    *tap = inside ? (int32_t)i : -1;
                    if (inside) map[i] = 0;
                    tap++;
                }
    }
    for (int64_t i = 0; i < samples * in_plane; i++)
        if (map[i] == 0) {
            in_positions[rows] = i;
            map[i] = (int32_t)rows++;
        }
    int64_t all = places * kernel[0] * kernel[1] * kernel[2]; /* ... then their rows */
    for (int64_t t = 0; t < all; t++)
        if (taps[t] >= 0) taps[t] = map[taps[t]];
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(rows);
}

/* The place in its plane of the input that won; the first of several, as torch has it. −1 in a window of padding. */
static inline int64_t winner_of(const float *plane, const int64_t *g, int64_t o0, int64_t o1, int64_t o2) {
    const int64_t *in = g + 1, *kernel = g + 7, *stride = g + 10, *padding = g + 13, *dilation = g + 16;
    int64_t best = -1;
    float most = -INFINITY;
    for (int64_t k0 = 0; k0 < kernel[0]; k0++) {
        int64_t i0 = o0 * stride[0] - padding[0] + k0 * dilation[0];
        if (i0 < 0 || i0 >= in[0]) continue;
        for (int64_t k1 = 0; k1 < kernel[1]; k1++) {
            int64_t i1 = o1 * stride[1] - padding[1] + k1 * dilation[1];
            if (i1 < 0 || i1 >= in[1]) continue;
            for (int64_t k2 = 0; k2 < kernel[2]; k2++) {
                int64_t i2 = o2 * stride[2] - padding[2] + k2 * dilation[2];
                if (i2 < 0 || i2 >= in[2]) continue;
                int64_t i = (i0 * in[1] + i1) * in[2] + i2;
                if (best < 0 || plane[i] > most) {
                    best = i;
                    most = plane[i];
                }
            }
        }
    }
    return best;
}

/* The winners of a max pool under single neurons: the place of the first largest input of each window.
   winners(x, flat, neurons, out, geometry …); `flat` is where the neurons stand in the pool's output. */
static PyObject *py_winners(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[23];
    if (!read_numbers(given, count, 23, a)) return NULL;
    const float *x = POINTER(const float, a[0]);
    const int64_t *flat = POINTER(const int64_t, a[1]), *g = a + 4;
    int64_t neurons = a[2], *winner = POINTER(int64_t, a[3]);
    const int64_t *in = g + 1, *out = g + 4;
    int64_t in_plane = in[0] * in[1] * in[2], out_plane = out[0] * out[1] * out[2];
    Py_BEGIN_ALLOW_THREADS
    for (int64_t e = 0; e < neurons; e++) {
        int64_t o = flat[e] % out_plane;
        winner[e] = winner_of(x + flat[e] / out_plane * in_plane, g, o / (out[1] * out[2]), o / out[2] % out[1], o % out[2]);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

typedef struct {
    const float *x, *given;
    float *taken;
    const int64_t *g;
} pooling;

/* A plane of one axis, and taps side by side. */
static void hand_line(const pooling *p, const float *line, const float *given, float *taken) {
    int64_t in = p->g[1], out = p->g[4], kernel = p->g[7], stride = p->g[10], padding = p->g[13];
    for (int64_t o = 0; o < out; o++) {
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

static void hand_plane(void *context, int64_t item) {
    pooling *p = context;
    const int64_t *in = p->g + 1, *out = p->g + 4;
    int64_t in_plane = in[0] * in[1] * in[2], out_plane = out[0] * out[1] * out[2], o = 0;
    const float *plane = p->x + item * in_plane, *given = p->given + item * out_plane;
    float *taken = p->taken + item * in_plane;
    if (in[1] * in[2] == 1 && p->g[16] == 1 && p->g[8] * p->g[9] == 1) {
        hand_line(p, plane, given, taken);
        return;
    }
    for (int64_t o0 = 0; o0 < out[0]; o0++)
        for (int64_t o1 = 0; o1 < out[1]; o1++)
            for (int64_t o2 = 0; o2 < out[2]; o2++, o++)
                if (given[o] != 0) {
                    int64_t best = winner_of(plane, p->g, o0, o1, o2);
                    if (best >= 0) taken[best] += given[o];
                }
}

/* Relevance of a whole max pool to the winners. pool(x, given, taken, planes, threads, geometry …) */
static PyObject *py_pool(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[24];
    if (!read_numbers(given, count, 24, a)) return NULL;
    pooling p = {POINTER(const float, a[0]), POINTER(const float, a[1]), POINTER(float, a[2]), a + 5};
    Py_BEGIN_ALLOW_THREADS
    parallel(hand_plane, &p, a[3], a[4]);
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
static PyObject *py_count(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[5];
    if (!read_numbers(given, count, 5, a)) return NULL;
    counting c = {POINTER(const float, a[0]), a[2], POINTER(int64_t, a[3])};
    Py_BEGIN_ALLOW_THREADS
    parallel(count_row, &c, a[1], a[1] * a[2] < 1 << 18 ? 1 : a[4]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* How many rows seem to have few entries that are not zero: at most `most` of `looks` that stand evenly in the row.
   glance(values, rows, each, looks, most) */
static PyObject *py_glance(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[5];
    if (!read_numbers(given, count, 5, a)) return NULL;
    const float *v = POINTER(const float, a[0]);
    int64_t few = 0;
    for (int64_t row = 0; row < a[1]; row++) {
        int64_t found = 0;
        for (int64_t i = 0; i < a[3]; i++) found += v[row * a[2] + i * a[2] / a[3]] != 0;
        few += found <= a[4];
    }
    return PyLong_FromLongLong(few);
}

/* --- rows ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    const int64_t *positions;
    int64_t channels, plane, count;
    float *rows;
} gathering;

enum { GATHERED = 64 }; /* positions per item */

static void gather_some(void *context, int64_t item) {
    gathering *g = context;
    int64_t from = item * GATHERED, to = from + GATHERED < g->count ? from + GATHERED : g->count;
    int64_t base[GATHERED];
    for (int64_t p = from; p < to; p++) {
        int64_t n = g->positions[p] / g->plane, i = g->positions[p] % g->plane;
        base[p - from] = n * g->channels * g->plane + i;
    }
    for (int64_t c0 = 0; c0 < g->channels; c0 += 16) { /* one line of the cache per row at a time */
        int64_t c1 = c0 + 16 < g->channels ? c0 + 16 : g->channels;
        for (int64_t p = from; p < to; p++) {
            const float *x = g->x + base[p - from];
            float *row = g->rows + p * g->channels;
            for (int64_t c = c0; c < c1; c++) row[c] = x[c * g->plane];
        }
    }
}

/* gather(x, positions, count, channels, plane, rows, threads): rows of a tensor (samples, channels, plane) */
static PyObject *py_gather(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[7];
    if (!read_numbers(given, count, 7, a)) return NULL;
    gathering g = {POINTER(const float, a[0]), POINTER(const int64_t, a[1]), a[3], a[4], a[2], POINTER(float, a[5])};
    int64_t threads = g.count * g.channels < 1 << 16 ? 1 : a[6];
    Py_BEGIN_ALLOW_THREADS
    parallel(gather_some, &g, (g.count + GATHERED - 1) / GATHERED, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void spread_some(void *context, int64_t item) {
    gathering *g = context;
    int64_t from = item * GATHERED, to = from + GATHERED < g->count ? from + GATHERED : g->count;
    for (int64_t p = from; p < to; p++) {
        int64_t n = g->positions[p] / g->plane, i = g->positions[p] % g->plane;
        float *x = (float *)g->x + n * g->channels * g->plane + i;
        const float *row = g->rows + p * g->channels;
        for (int64_t c = 0; c < g->channels; c++) x[c * g->plane] = row[c];
    }
}

/* spread(x, positions, count, channels, plane, rows, threads): the inverse of gather */
static PyObject *py_spread(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[7];
    if (!read_numbers(given, count, 7, a)) return NULL;
    gathering g = {POINTER(const float, a[0]), POINTER(const int64_t, a[1]), a[3], a[4], a[2], POINTER(float, a[5])};
    Py_BEGIN_ALLOW_THREADS
    parallel(spread_some, &g, (g.count + GATHERED - 1) / GATHERED, g.count * g.channels < 1 << 15 ? 1 : a[6]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Add relevance to rows. add(total, width, where, count, values, begins, channels): row where[q] takes values[q], or
   with `begins`, the neurons begins[q] … begins[q + 1] at their channels */
static PyObject *py_add(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[7];
    if (!read_numbers(given, count, 7, a)) return NULL;
    float *total = POINTER(float, a[0]);
    const int64_t *where = POINTER(const int64_t, a[2]), *begins = POINTER(const int64_t, a[5]);
    const float *values = POINTER(const float, a[4]);
    const int32_t *channels = POINTER(const int32_t, a[6]);
    int64_t width = a[1];
    Py_BEGIN_ALLOW_THREADS
    for (int64_t q = 0; q < a[3]; q++) {
        float *row = total + where[q] * width;
        if (begins)
            for (int64_t e = begins[q]; e < begins[q + 1]; e++) row[channels[e]] += values[e];
        else
            for (int64_t c = 0; c < width; c++) row[c] += values[q * width + c];
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Weights as the loops below read them, (outputs, taps, inputs of the group), from (outputs, inputs, taps); per channel
   scaled, and cut to a sign: part 0 all, 1 positive, −1 negative. Only the channels that are wanted and not yet there.

   Rows that are kept from one call to the next have a mark each: a fingerprint of the raw row and its scale, or UNMADE,
   or BEING_MADE by another thread. A row whose mark is right is there already; how many have another is returned, and
   these stay as they are: an earlier explanation may still be reading them.
   weights(raw, scale or 0, outputs, inputs, taps, part, wanted or 0 (all), count, ready or 0, out, marks or 0, threads) */
typedef struct {
    const float *raw, *scale;
    int64_t inputs, taps, part;
    const int32_t *todo;
    int64_t count, each; /* of them, at a time */
    float *out;
    _Atomic uint64_t *marks;
    atomic_llong outdated;
} weighing;

enum { UNMADE = 0, BEING_MADE = 1, FIRST_MARK = 2 };

/* The halves of a product of 64 bits, together: every bit of the result hangs on every bit of both. */
INLINE uint64_t mixed(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* 64 bits of n floats and one more: four chains of products, so that where a number stands matters too, and two rows
   have the same fingerprint by chance alone, one in 2⁶⁴. */
enum { CHAINS = 4, PIECE = 4 * CHAINS };
static const uint64_t KEYS[CHAINS] = {0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0xd6e8feb86659fd93};

INLINE void chain(uint64_t *chains, const float *piece) {
    uint64_t words[2 * CHAINS];
    memcpy(words, piece, sizeof words);
    for (int c = 0; c < CHAINS; c++) chains[c] = mixed(words[2 * c] ^ KEYS[c], words[2 * c + 1] ^ chains[c]);
}

FOR_THIS_MACHINE
static uint64_t fingerprint(const float *v, int64_t n, float scale) {
    uint64_t chains[CHAINS] = {KEYS[3], KEYS[2], KEYS[1], KEYS[0]};
    int64_t i = 0;
    for (; i + PIECE <= n; i += PIECE) chain(chains, v + i);
    if (i < n) {
        float rest[PIECE] = {0};
        memcpy(rest, v + i, (size_t)(n - i) * sizeof *v);
        chain(chains, rest);
    }
    uint64_t all = mixed(KEYS[0] ^ (uint64_t)n, KEYS[1] ^ bits_of(scale));
    for (int c = 0; c < CHAINS; c++) all = mixed(all ^ KEYS[c], chains[c] ^ KEYS[CHAINS - 1 - c]);
    return all < FIRST_MARK ? FIRST_MARK : all;
}

FOR_THIS_MACHINE
static void make_row(const weighing *w, int64_t k) {
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
    if (!w->marks) {
        make_row(w, k);
        return;
    }
    uint64_t mark = fingerprint(w->raw + k * size, size, w->scale ? w->scale[k] : 1);
    uint64_t made = UNMADE;
    if (atomic_compare_exchange_strong(&w->marks[k], &made, BEING_MADE)) {
        make_row(w, k);
        atomic_store(&w->marks[k], mark);
    } else if (made != mark)
        atomic_fetch_add(&w->outdated, 1);
}

static void weigh(void *context, int64_t item) {
    weighing *w = context;
    int64_t to = (item + 1) * w->each < w->count ? (item + 1) * w->each : w->count;
    for (int64_t i = item * w->each; i < to; i++) weigh_one(w, w->todo[i]);
}

static PyObject *py_weights(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[12];
    if (!read_numbers(given, count, 12, a)) return NULL;
    const int32_t *wanted = POINTER(const int32_t, a[6]);
    uint8_t *ready = POINTER(uint8_t, a[8]);
    int32_t *todo = malloc((size_t)(a[2] + 1) * sizeof *todo);
    uint8_t *listed = calloc((size_t)(a[2] + 1), sizeof *listed);
    if (!todo || !listed) {
        free(todo);
        free(listed);
        return PyErr_NoMemory();
    }
    int64_t n = 0;
    for (int64_t i = 0; i < a[7]; i++) {
        int32_t k = wanted ? wanted[i] : (int32_t)i;
        if ((!ready || !ready[k]) && !listed[k]) {
            listed[k] = 1;
            todo[n++] = k;
        }
    }
    weighing w = {POINTER(const float, a[0]), POINTER(const float, a[1]), a[3], a[4], a[5], todo,
                  n, 1 + (1 << 14) / (a[3] * a[4] + 1), POINTER(float, a[9]), POINTER(_Atomic uint64_t, a[10]), 0};
    int64_t threads = n * a[3] * a[4] < 1 << 16 ? 1 : a[11];
    Py_BEGIN_ALLOW_THREADS
    parallel(weigh, &w, (n + w.each - 1) / w.each, threads);
    Py_END_ALLOW_THREADS
    int64_t outdated = atomic_load(&w.outdated);
    for (int64_t i = 0; i < n && ready && !outdated; i++) ready[todo[i]] = 1; /* not before they are: others may share them */
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

INLINE float sum_lanes(lanes v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}

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
    for (int n = 0; n < block; n++) l->d[e + n] += sum_lanes(sums[n] + more[n]) + rest[n];
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

typedef struct {
    float *to;
    const float *by;
    int64_t size;
} product;

FOR_THIS_MACHINE
static void multiply_some(void *context, int64_t item) {
    product *p = context;
    int64_t to = (item + 1) * THINNED < p->size ? (item + 1) * THINNED : p->size;
    for (int64_t i = item * THINNED; i < to; i++) p->to[i] *= p->by[i];
}

/* One layer over the neurons that hold relevance, in any of three ways (`what`): 1 contributions Σ_j n_jk into d,
   2 Σ_k w_jk s_k into taken, times the rows if they are given, 3 both at once with the quotient between.
   layer(what, places, positions, begins, channels, taps, kernel, inputs, outputs, groups, weight, rows, d, s, taken,
   read, samples, axis, inner, reach, given, bias, epsilon, one_sign, threads) */
static PyObject *py_layer(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[25];
    if (!read_numbers(given, count, 25, a)) return NULL;
    int64_t height = a[19] > 0 ? a[19] : 1;
    layer l = {.places = a[1],
               .positions = POINTER(const int64_t, a[2]),
               .begins = POINTER(const int64_t, a[3]),
               .channels = POINTER(const int32_t, a[4]),
               .taps = POINTER(const int32_t, a[5]),
               .kernel = a[6],
               .inputs = a[7],
               .outputs = a[8],
               .groups = a[9],
               .weight = POINTER(const float, a[10]),
               .rows = POINTER(const float, a[11]),
               .d = POINTER(float, a[12]),
               .s = POINTER(float, a[13]),
               .taken = POINTER(float, a[14]),
               .axis = a[17],
               .inner = a[18],
               .height = height,
               .per_sample = ((a[17] + height - 1) / height + 1) / 2 * 2,
               .phases = a[19] > 0 ? 2 : 1,
               .fused = a[0] == 3,
               .given = POINTER(const float, a[20]),
               .bias = POINTER(const float, a[21]),
               .epsilon = a[0] == 3 ? (float)real_of(a[22]) : 0,
               .one_sign = (int)a[23]};
    int64_t products = l.places ? l.begins[l.places] * l.kernel * (l.inputs / l.groups) : 0;
    int64_t threads = products < 1 << 18 ? 1 : a[24];
    Py_BEGIN_ALLOW_THREADS
    if (a[0] == 1) {
        parallel(dots_some, &l, (l.places + PLACES - 1) / PLACES, threads);
    } else {
        int64_t bands = a[16] * l.per_sample;
        for (l.phase = 0; l.phase < l.phases; l.phase++) parallel(hand_band, &l, bands / l.phases, threads);
    }
    if (a[0] != 1 && l.rows) {
        product p = {l.taken, l.rows, a[15] * l.inputs};
        parallel(multiply_some, &p, (p.size + THINNED - 1) / THINNED, p.size < 1 << 17 ? 1 : a[24]);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* --- whole tensors ---------------------------------------------------------------------------------------------- */

/* Large maps are bound by memory: one pass instead of one per arithmetic step. */

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

/* out = r / (d + ε sign d). divide(r, d, size, epsilon, one_sign, out, threads) */
static PyObject *py_divide(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t n[7];
    if (!read_numbers(given, count, 7, n)) return NULL;
    passage p = {.r = POINTER(const float, n[0]),
                 .d = POINTER(const float, n[1]),
                 .size = n[2],
                 .epsilon = (float)real_of(n[3]),
                 .one_sign = (int)n[4],
                 .out = POINTER(float, n[5])};
    Py_BEGIN_ALLOW_THREADS
    parallel(divide_some, &p, (p.size + SOME - 1) / SOME, p.size < 1 << 16 ? 1 : n[6]);
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
INLINE void turn(lanes v[LANES]) {
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
            turn(r);
            for (int n = 0; n < LANES; n++) {
                lanes x = *(const lanes *)(p->a + first + n * plane), y = *(const lanes *)(p->b + first + n * plane), z = x + y;
                r[n] /= z + (lanes)(((lane_bits)z & sign) | epsilon); /* ε with the sign of z */
                a[n] = r[n] * x;
                b[n] = r[n] * y;
            }
            turn(a);
            turn(b);
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
            turn(v);
            store(v, p->out + base + i * width + c, width);
        }
        int64_t end = whole ? i + LANES : to;
        for (int64_t j = i; j < end; j++)
            for (int64_t k = c; k < width; k++) p->out[base + j * width + k] = p->r[base + k * plane + j];
        i = end;
    }
}

/* A tensor (samples, channels, plane) with its channels last. turn(from, to, samples, channels, plane, threads) */
static PyObject *py_turn(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t n[6];
    if (!read_numbers(given, count, 6, n)) return NULL;
    passage p = {.r = POINTER(const float, n[0]), .out = POINTER(float, n[1]), .channels = n[3], .plane = n[4]};
    Py_BEGIN_ALLOW_THREADS
    parallel(turn_tiles, &p, n[2] * ((p.plane + TILE - 1) / TILE), n[2] * n[3] * n[4] < 1 << 16 ? 1 : n[5]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* a / (a + b) and b / (a + b) of r, stabilised. split(r, a, b, out, out_b, samples, channels, plane, last, epsilon,
   one_sign, threads); `last`: r and the results have their channels last */
static PyObject *py_split(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t n[12];
    if (!read_numbers(given, count, 12, n)) return NULL;
    passage p = {.r = POINTER(const float, n[0]),
                 .a = POINTER(const float, n[1]),
                 .b = POINTER(const float, n[2]),
                 .out = POINTER(float, n[3]),
                 .out_b = POINTER(float, n[4]),
                 .size = n[5] * n[6] * n[7],
                 .channels = n[6],
                 .plane = n[7],
                 .epsilon = (float)real_of(n[9]),
                 .one_sign = (int)n[10]};
    int64_t threads = p.size < 1 << 16 ? 1 : n[11];
    Py_BEGIN_ALLOW_THREADS
    if (n[8])
        parallel(split_tiles, &p, n[5] * ((p.plane + TILE - 1) / TILE), threads);
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
} pulling;

FOR_THIS_MACHINE
static void pull_some(void *context, int64_t item) {
    const pulling *p = context;
    int64_t blocks = (p->length + TILE - 1) / TILE, sample = item / blocks, begin = item % blocks * TILE;
    int64_t stop = begin + TILE < p->length ? begin + TILE : p->length;
    const float *s = p->s + sample * p->reads * p->outputs;
    for (int64_t j = begin; j < stop; j++) {
        int64_t first = j - p->before, from = first > 0 ? first : 0;
        int64_t to = first + p->taps < p->reads ? first + p->taps : p->reads, size = (to - from) * p->outputs;
        const float *read = s + from * p->outputs;
        for (int64_t c = 0; c < p->inputs; c++) {
            int64_t at = (sample * p->length + j) * p->inputs + c;
            float x = p->x[at], rest = 0;
            p->out[at] = 0;
            if (x == 0 || size <= 0) continue;
            const float *w = p->w + (c * p->taps + from - first) * p->outputs;
            lanes sums[4] = {{0}, {0}, {0}, {0}};
            int64_t i = 0;
            for (; i + 4 * LANES <= size; i += 4 * LANES)
                for (int n = 0; n < 4; n++)
                    sums[n] += *(const lanes *)(read + i + n * LANES) * *(const lanes *)(w + i + n * LANES);
            for (; i < size; i++) rest += read[i] * w[i];
            p->out[at] = x * (sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest);
        }
    }
}

/* pull(s, w, x, out, samples, length, reads, inputs, outputs, taps, before, threads) */
static PyObject *py_pull(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t n[12];
    if (!read_numbers(given, count, 12, n)) return NULL;
    pulling p = {POINTER(const float, n[0]), POINTER(const float, n[1]), POINTER(const float, n[2]), POINTER(float, n[3]),
                 n[5], n[6], n[7], n[8], n[9], n[10]};
    Py_BEGIN_ALLOW_THREADS
    parallel(pull_some, &p, n[4] * ((n[5] + TILE - 1) / TILE), n[4] * n[5] < 256 ? 1 : n[11]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Relevance of a max pool to the winners, which are known; channels last on both sides. One item: some channels of a
   sample, whose windows may overlap. */
static void settle_channels(void *context, int64_t item) {
    passage *p = context;
    int64_t blocks = (p->channels + 15) / 16, sample = item / blocks, c0 = item % blocks * 16;
    int64_t channels = c0 + 16 < p->channels ? 16 : p->channels - c0;
    const int64_t *winners = p->winners + (sample * p->channels + c0) * p->plane;
    const float *r = p->r + sample * p->plane * p->channels + c0;
    float *out = p->out + sample * p->below * p->channels + c0;
    for (int64_t i = 0; i < p->plane; i++)
        for (int64_t c = 0; c < channels; c++) out[winners[c * p->plane + i] * p->channels + c] += r[i * p->channels + c];
}

/* settle(r, winners, out, samples, channels, plane, below, threads) */
static PyObject *py_settle(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t n[8];
    if (!read_numbers(given, count, 8, n)) return NULL;
    passage p = {.r = POINTER(const float, n[0]),
                 .winners = POINTER(const int64_t, n[1]),
                 .out = POINTER(float, n[2]),
                 .channels = n[4],
                 .plane = n[5],
                 .below = n[6]};
    Py_BEGIN_ALLOW_THREADS
    parallel(settle_channels, &p, n[3] * ((p.channels + 15) / 16), n[3] * n[4] * n[5] < 1 << 14 ? 1 : n[7]);
    Py_END_ALLOW_THREADS
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
            reached += sum_lanes(sums[0] + sums[1]);
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

/* What each neuron of the output handed down in the first pass, to the survivors alone; for contributions ≥ 0 and one
   group. again(places, positions, begins, channels, taps, kernel, inputs, outputs, weight, d, s, bias, samples, axis, inner,
   reach, lowest, end, survivors' channels, x, received, orphaned, threads) */
static PyObject *py_again(PyObject *self, PyObject *const *given, Py_ssize_t count) {
    (void)self;
    int64_t a[23];
    if (!read_numbers(given, count, 23, a)) return NULL;
    int64_t height = a[15] > 0 ? a[15] : 1;
    second g = {.l = {.places = a[0],
                      .positions = POINTER(const int64_t, a[1]),
                      .begins = POINTER(const int64_t, a[2]),
                      .channels = POINTER(const int32_t, a[3]),
                      .taps = POINTER(const int32_t, a[4]),
                      .kernel = a[5],
                      .inputs = a[6],
                      .outputs = a[7],
                      .groups = 1,
                      .weight = POINTER(const float, a[8]),
                      .d = POINTER(float, a[9]),
                      .s = POINTER(float, a[10]),
                      .bias = POINTER(const float, a[11]),
                      .axis = a[13],
                      .inner = a[14],
                      .height = height,
                      .per_sample = ((a[13] + height - 1) / height + 1) / 2 * 2,
                      .phases = a[15] > 0 ? 2 : 1},
                .lowest = POINTER(const int64_t, a[16]),
                .end = POINTER(const int64_t, a[17]),
                .channels = POINTER(const int32_t, a[18]),
                .x = POINTER(const float, a[19]),
                .received = POINTER(float, a[20]),
                .orphaned = POINTER(float, a[21])};
    int64_t threads = g.l.places && g.l.begins[g.l.places] > 256 ? a[22] : 1;
    int64_t bands = a[12] * g.l.per_sample;
    Py_BEGIN_ALLOW_THREADS
    for (g.l.phase = 0; g.l.phase < g.l.phases; g.l.phase++) parallel(again_band, &g, bands / g.l.phases, threads);
    Py_END_ALLOW_THREADS
    if (g.failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"select", (PyCFunction)(void (*)(void))py_select, METH_FASTCALL, "θ of both signs per row, with masses and counts."},
    {"thin", (PyCFunction)(void (*)(void))py_thin, METH_FASTCALL, "The survivors in place, times λ."},
    {"collect_rows", (PyCFunction)(void (*)(void))py_collect_rows, METH_FASTCALL, "The survivors of rows."},
    {"collect_dense", (PyCFunction)(void (*)(void))py_collect_dense, METH_FASTCALL, "The survivors of a tensor."},
    {"regroup", (PyCFunction)(void (*)(void))py_regroup, METH_FASTCALL, "Neurons in the order of positions."},
    {"take", (PyCFunction)(void (*)(void))py_take, METH_FASTCALL, "Entries of a tensor by their places."},
    {"union", (PyCFunction)(void (*)(void))py_union, METH_FASTCALL, "The union of two lists of positions."},
    {"flat", (PyCFunction)(void (*)(void))py_flat, METH_FASTCALL, "Where neurons stand in their tensor."},
    {"plan", (PyCFunction)(void (*)(void))py_plan, METH_FASTCALL, "Which input positions output positions read."},
    {"winners", (PyCFunction)(void (*)(void))py_winners, METH_FASTCALL, "Who won a max pool."},
    {"pool", (PyCFunction)(void (*)(void))py_pool, METH_FASTCALL, "Relevance of a max pool to the winners."},
    {"glance", (PyCFunction)(void (*)(void))py_glance, METH_FASTCALL, "How many rows seem to be rather empty."},
    {"count", (PyCFunction)(void (*)(void))py_count, METH_FASTCALL, "Entries that are not zero."},
    {"spread", (PyCFunction)(void (*)(void))py_spread, METH_FASTCALL, "A tensor from its rows at some positions."},
    {"add", (PyCFunction)(void (*)(void))py_add, METH_FASTCALL, "Relevance added to rows."},
    {"gather", (PyCFunction)(void (*)(void))py_gather, METH_FASTCALL, "Rows of a tensor at some positions."},
    {"weights", (PyCFunction)(void (*)(void))py_weights, METH_FASTCALL, "Weights with inputs last."},
    {"layer", (PyCFunction)(void (*)(void))py_layer, METH_FASTCALL, "A layer over single neurons."},
    {"divide", (PyCFunction)(void (*)(void))py_divide, METH_FASTCALL, "R / (d + ε sign d)."},
    {"split", (PyCFunction)(void (*)(void))py_split, METH_FASTCALL, "The shares of both operands of a sum."},
    {"turn", (PyCFunction)(void (*)(void))py_turn, METH_FASTCALL, "Channels last."},
    {"pull", (PyCFunction)(void (*)(void))py_pull, METH_FASTCALL, "To the inputs of a convolution that are not zero."},
    {"settle", (PyCFunction)(void (*)(void))py_settle, METH_FASTCALL, "Relevance to known winners, channels last."},
    {"again", (PyCFunction)(void (*)(void))py_again, METH_FASTCALL, "PLRP-M's second pass."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Compiled inner loops; see native.py.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    void *found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    memcpy(&team, &found, sizeof team);
    pthread_atfork(NULL, NULL, forget_helpers);
    return PyModule_Create(&module);
}
