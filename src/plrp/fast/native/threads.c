/* The threads that the loops run on. */

#include "loops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

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

enum { MOST_THREADS = 64, MOST_IN_TEAM = 1024 };

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

void parallel(task run, void *context, int64_t items, int64_t threads) {
    queue q = {run, context, items, 0};
    if (threads > 1 && items > 1 && team) { /* always all of them: a smaller team would send the others away for good */
        team(drain_any, &q, (unsigned)(threads < MOST_IN_TEAM ? threads : MOST_IN_TEAM), 0);
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
void prepare_threads(void) {
    void *found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    memcpy(&team, &found, sizeof team);
    pthread_atfork(NULL, NULL, forget_helpers);
}
