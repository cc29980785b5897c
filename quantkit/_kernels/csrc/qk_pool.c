#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "qk_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define MAX_THREADS 256
#define SPIN_NANOSECONDS 50000 /* how long a worker looks for more work before it sleeps */

/* The job on offer. `state` is generation << 32 | OPEN | workers inside: a worker enters by adding itself while the job
 * is open, so that one that wakes late never touches a job that is over. */
#define OPEN 0x80000000u
#define INSIDE 0x7fffffffu

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    atomic_uint_fast64_t state;
    atomic_int sleepers, next;
    atomic_flag busy;
    qk_task_fn *fn;
    void *arg;
    int tasks;
    int workers; /* started so far */
    atomic_int limit; /* workers that may enter this job */
    atomic_int threads; /* that may be used: set by any thread, at any time */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .busy = ATOMIC_FLAG_INIT, .threads = 1};

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void take_tasks(void) {
    for (;;) {
        const int task = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed);
        if (task >= pool.tasks) return;
        pool.fn(pool.arg, task);
    }
}

static int on_offer(uint64_t state, uint32_t seen) { return (state & OPEN) && (uint32_t)(state >> 32) != seen; }

static void *worker(void *unused) {
    (void)unused;
    uint32_t seen = 0;
    for (;;) {
        uint64_t state = atomic_load(&pool.state);
        if (!on_offer(state, seen)) {
            const int64_t until = now() + SPIN_NANOSECONDS;
            do {
                for (int i = 0; i < 64 && !on_offer(state, seen); i++) {
                    relax();
                    state = atomic_load(&pool.state);
                }
            } while (!on_offer(state, seen) && now() < until);
        }
        if (!on_offer(state, seen)) {
            pthread_mutex_lock(&pool.mutex);
            atomic_fetch_add(&pool.sleepers, 1);
            while (!on_offer(state = atomic_load(&pool.state), seen)) pthread_cond_wait(&pool.wake, &pool.mutex);
            atomic_fetch_sub(&pool.sleepers, 1);
            pthread_mutex_unlock(&pool.mutex);
        }
        if (!atomic_compare_exchange_strong(&pool.state, &state, state + 1)) continue;
        seen = (uint32_t)(state >> 32);
        if (atomic_fetch_sub(&pool.limit, 1) > 0) take_tasks();
        atomic_fetch_sub(&pool.state, 1);
    }
    return NULL;
}

/* Threads do not survive fork: the child begins anew, whatever the parent's pool was doing. */
static void reset_in_child(void) {
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.wake, NULL);
    atomic_store(&pool.state, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_flag_clear(&pool.busy);
    pool.workers = 0;
}

/* When the module is loaded: a fork may come before the first job is over. */
__attribute__((constructor)) static void prepare_for_fork(void) { pthread_atfork(NULL, NULL, reset_in_child); }

static void start_workers(int wanted) {
    sigset_t all, before;
    if (pool.workers >= wanted) return;
    /* Signals are for the application's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.workers < wanted) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        const int failed = pthread_create(&thread, &attributes, worker, NULL);
        pthread_attr_destroy(&attributes);
        if (failed) break; /* fewer helpers: the caller does more itself */
#ifdef __linux__
        char name[16];
        snprintf(name, sizeof name, "quantkit-%d", pool.workers);
        pthread_setname_np(thread, name);
#endif
        pool.workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void qk_parallel(qk_task_fn *fn, void *arg, int tasks, int threads) {
    if (threads > qk_num_threads()) threads = qk_num_threads();
    if (threads > tasks) threads = tasks;
    if (threads <= 1 || atomic_flag_test_and_set(&pool.busy)) {
        for (int task = 0; task < tasks; task++) fn(arg, task);
        return;
    }
    start_workers(threads - 1);
    pool.fn = fn;
    pool.arg = arg;
    pool.tasks = tasks;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.limit, threads - 1);
    const uint64_t generation = (uint32_t)(atomic_load(&pool.state) >> 32) + 1u;
    atomic_store(&pool.state, (generation & 0xffffffffu) << 32 | OPEN);
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.mutex);
    }
    take_tasks();
    atomic_fetch_and(&pool.state, ~(uint64_t)OPEN);
    for (int spins = 0; atomic_load(&pool.state) & INSIDE; spins++) {
        relax();
        if (spins > 2000) sched_yield(); /* the last one is not running: more threads than CPUs */
    }
    atomic_flag_clear(&pool.busy);
}

void qk_set_num_threads(int threads) {
    atomic_store_explicit(&pool.threads, threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads, memory_order_relaxed);
}

static _Thread_local int own_limit;

void qk_limit_threads(int threads) { own_limit = threads; }

int qk_num_threads(void) {
    const int threads = atomic_load_explicit(&pool.threads, memory_order_relaxed);
    return own_limit > 0 && own_limit < threads ? own_limit : threads;
}
