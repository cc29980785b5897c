#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "qk_task.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The lock is held for moments only, so that whoever finds it taken looks again before the system puts it to sleep. */
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#define LOCK PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#else
#define LOCK PTHREAD_MUTEX_INITIALIZER
#endif

pthread_mutex_t qk_tasks = LOCK;
_Thread_local qk_task *qk_task_running;
atomic_int qk_finished_count;
static qk_task *first_finished, *last_finished;

void qk_tasks_init(void) { qk_tasks = (pthread_mutex_t)LOCK; }

int64_t qk_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

struct timespec qk_deadline(int64_t nanoseconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (nanoseconds > 1000000000000000000ll) nanoseconds = 1000000000000000000ll;
    t.tv_sec += nanoseconds / 1000000000ll;
    t.tv_nsec += nanoseconds % 1000000000ll;
    if (t.tv_nsec >= 1000000000l) t.tv_sec++, t.tv_nsec -= 1000000000l;
    return t;
}

qk_task *qk_task_new(void *owner, qk_owner_fn *run_owner) {
    qk_task *t = malloc(sizeof *t);
    if (!t) return NULL;
    memset(t, 0, offsetof(qk_task, few));
    atomic_init(&t->refs, 1);
    t->after = t->few;
    t->after_room = QK_FEW;
    t->calls = &t->one;
    t->call_room = 1;
    t->owner = owner;
    t->run_owner = run_owner;
    return t;
}

/* A task for whoever takes finished ones; the reference goes with it. */
static void hand_over(qk_task *t) {
    t->next_finished = NULL;
    if (last_finished) last_finished->next_finished = t;
    else first_finished = t;
    last_finished = t;
    qk_finished_count++;
}

int qk_task_unref_unless_last(qk_task *t) {
    int refs = atomic_load_explicit(&t->refs, memory_order_relaxed);
    while (refs > 1)
        if (atomic_compare_exchange_weak_explicit(&t->refs, &refs, refs - 1, memory_order_release, memory_order_relaxed))
            return 1;
    return 0;
}

int qk_task_unref_locked(qk_task *t) {
    int more = 0;
    if (atomic_fetch_sub(&t->refs, 1) > 1) return 0;
    if (t->cause) {
        qk_task *cause = t->cause;
        t->cause = NULL;
        more = qk_task_unref_locked(cause);
    }
    for (int i = 0; i < t->after_count; i++) more |= qk_task_unref_locked(t->after[i].task);
    t->after_count = 0;
    if (t->owner && t->state >= QK_DONE) {
        atomic_store(&t->refs, 1);
        t->dead = 1;
        hand_over(t);
        return 1;
    }
    if (t->after != t->few) free(t->after);
    if (t->calls != &t->one) free(t->calls);
    free(t);
    return more;
}

void qk_task_ref(qk_task *t) { atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed); }

void qk_task_unref(qk_task *t) {
    if (qk_task_unref_unless_last(t)) return;
    pthread_mutex_lock(&qk_tasks);
    qk_task_unref_locked(t);
    pthread_mutex_unlock(&qk_tasks);
}

void *qk_task_grow(void *array, const void *own, int had, int count, size_t size) {
    void *grown = realloc(array == own ? NULL : array, size * (size_t)count);
    if (grown && array == own) memcpy(grown, own, size * (size_t)had);
    return grown;
}

int qk_task_add(qk_task *t, const qk_call *call) {
    if (t->call_count == t->call_room) {
        qk_call *calls = qk_task_grow(t->calls, &t->one, t->call_count, 2 * t->call_room, sizeof *calls);
        if (!calls) return -1;
        t->calls = calls;
        t->call_room *= 2;
    }
    t->calls[t->call_count++] = *call;
    return 0;
}

qk_state qk_task_run(qk_task *t) {
    if (t->run_owner) return t->run_owner(t->owner);
    for (int i = 0; i < t->call_count; i++) {
        const int status = t->calls[i].run(&t->calls[i]);
        if (status) {
            t->status = status;
            t->fault = t->calls[i].fault;
            return QK_FAILED;
        }
    }
    return QK_DONE;
}

void qk_task_end(qk_task *t, qk_state state) {
    t->finished = qk_nanoseconds();
    atomic_store_explicit(&t->state, state, memory_order_release);
    t->next = NULL;
    if (state != QK_CANCELLED) {
        for (int i = 0; i < t->after_count; i++) qk_task_unref_locked(t->after[i].task);
        t->after_count = 0;
    }
    for (qk_waiter *w = t->waiters; w; w = w->next) pthread_cond_signal(w->wake);
    t->waiters = NULL;
    hand_over(t);
}

void qk_task_watch(qk_task *t, qk_waiter *waiter) {
    waiter->next = t->waiters;
    t->waiters = waiter;
}

void qk_task_unwatch(qk_task *t, qk_waiter *waiter) {
    for (qk_waiter **at = &t->waiters; *at; at = &(*at)->next) {
        if (*at == waiter) {
            *at = waiter->next;
            return;
        }
    }
}

qk_outcome qk_task_outcome(qk_task *t) {
    const int over = atomic_load_explicit(&t->state, memory_order_acquire) >= QK_DONE;
    if (!over) pthread_mutex_lock(&qk_tasks);
    const qk_outcome outcome = {t->state,  t->status,  t->fault,   t->cause ? t->cause->owner : NULL,
                                t->queued, t->started, t->finished};
    if (!over) pthread_mutex_unlock(&qk_tasks);
    return outcome;
}

int qk_on_worker(void) { return qk_task_running != NULL; }

qk_task *qk_take_finished(void) {
    if (!atomic_load_explicit(&qk_finished_count, memory_order_relaxed)) return NULL;
    pthread_mutex_lock(&qk_tasks);
    qk_task *t = first_finished;
    first_finished = last_finished = NULL;
    qk_finished_count = 0;
    pthread_mutex_unlock(&qk_tasks);
    return t;
}

qk_task *qk_task_next(const qk_task *t) { return t->next_finished; }

void *qk_task_owner(const qk_task *t, int *dead) {
    *dead = t->dead;
    return t->owner;
}

void qk_task_drop_owner(qk_task *t) { t->owner = NULL; }
