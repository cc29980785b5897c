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

/* Drop a reference that is not the last one without the lock; whether that was so. */
static int unref_unless_last(qk_task *t) {
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
    if (unref_unless_last(t)) return;
    pthread_mutex_lock(&qk_tasks);
    qk_task_unref_locked(t);
    pthread_mutex_unlock(&qk_tasks);
}

/* Room for `count` elements where there were some in the task itself or in memory of their own; NULL without memory. */
static void *grow(void *array, const void *own, int had, int count, size_t size) {
    void *grown = realloc(array == own ? NULL : array, size * (size_t)count);
    if (grown && array == own) memcpy(grown, own, size * (size_t)had);
    return grown;
}

int qk_task_add(qk_task *t, const qk_call *call) {
    if (t->call_count == t->call_room) {
        qk_call *calls = grow(t->calls, &t->one, t->call_count, 2 * t->call_room, sizeof *calls);
        if (!calls) return -1;
        t->calls = calls;
        t->call_room *= 2;
    }
    t->calls[t->call_count++] = *call;
    return 0;
}

static int reserve(qk_task *t, int more) {
    if (t->after_count + more <= t->after_room) return 0;
    const int room = 2 * t->after_room > t->after_count + more ? 2 * t->after_room : t->after_count + more;
    qk_after *after = grow(t->after, t->few, t->after_count, room, sizeof *after);
    if (!after) return -1;
    t->after = after;
    t->after_room = room;
    return 0;
}

/* A cancelled task is over at once, but what it waited for may still use the bytes: whoever comes after it comes after
 * that. Chains of cancelled tasks may be long, so that the last dependency of each is followed without recursion. */
qk_task *qk_task_unfinished(qk_task *t) {
    while (t->state == QK_CANCELLED && t->after_count) {
        for (int i = 0; i < t->after_count - 1; i++) {
            qk_task *found = qk_task_unfinished(t->after[i].task);
            if (found) return found;
        }
        t = t->after[t->after_count - 1].task;
    }
    return t->state < QK_DONE ? t : NULL;
}

/* A task that is over well is nothing to wait for; one that failed matters to those that use what it wrote. */
static void add_after(qk_task *t, qk_task *other, int reads) {
    if (other == t || (other->state >= QK_DONE && !(reads && other->state > QK_DONE) && !qk_task_unfinished(other))) return;
    other->refs++;
    t->after[t->after_count++] = (qk_after){other, reads};
}

int qk_task_after(qk_task *t, qk_task *other) {
    pthread_mutex_lock(&qk_tasks);
    const int status = reserve(t, 1);
    if (!status) add_after(t, other, 0);
    pthread_mutex_unlock(&qk_tasks);
    return status;
}

static void forget_finished_readers(qk_hazards *h) {
    int kept = 0;
    for (int i = 0; i < h->count; i++) {
        if (h->readers[i]->state < QK_DONE) h->readers[kept++] = h->readers[i];
        else qk_task_unref_locked(h->readers[i]);
    }
    h->count = kept;
}

int qk_task_order(qk_task *t, const qk_access *accesses, int count) {
    int most = count;
    for (int i = 0; i < count; i++) { /* memory first: after this nothing fails */
        qk_hazards *h = accesses[i].hazards;
        if (h->count + count > h->room) {
            forget_finished_readers(h);
            const int room = 2 * (h->count + count);
            qk_task **readers = realloc(h->readers, sizeof *readers * (size_t)room);
            if (!readers) return -1;
            h->readers = readers;
            h->room = room;
        }
        most += h->count;
    }
    if (reserve(t, most)) return -1;
    for (int i = 0; i < count; i++) {
        qk_hazards *h = accesses[i].hazards;
        if (h->writer) add_after(t, h->writer, accesses[i].use != QK_WRITES_ALL);
        if (accesses[i].use != QK_READS)
            for (int k = 0; k < h->count; k++) add_after(t, h->readers[k], 0);
    }
    for (int i = 0; i < count; i++) {
        qk_hazards *h = accesses[i].hazards;
        t->refs++;
        if (accesses[i].use == QK_READS) {
            h->readers[h->count++] = t;
            continue;
        }
        for (int k = 0; k < h->count; k++) qk_task_unref_locked(h->readers[k]);
        h->count = 0;
        if (h->writer) qk_task_unref_locked(h->writer);
        h->writer = t;
    }
    return 0;
}

qk_task *qk_task_poison(const qk_task *t) {
    for (int i = 0; i < t->after_count; i++) {
        qk_task *other = t->after[i].task;
        if (!t->after[i].reads || other->state <= QK_DONE) continue;
        if (other->cause) other = other->cause;
        other->refs++;
        return other;
    }
    return NULL;
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

/* Whether `t` can only be over after `other`: by the order of its queue, by what tasks wait for, or by what a callable
 * that runs now is waiting for. From the front of a queue, so that searches stay shallow: each goes further back. */
static int depends(qk_task *t, const qk_task *other, uint64_t mark) {
    if (t == other) return 1;
    if (t->state == QK_CANCELLED && t->mark != mark) {
        t->mark = mark;
        for (int i = 0; i < t->after_count; i++)
            if (depends(t->after[i].task, other, mark)) return 1;
    }
    if (t->state >= QK_DONE || t->mark == mark) return 0;
    if (!t->stream_head) return 0;
    for (qk_task *u = *t->stream_head; u; u = u->next) {
        if (u == other) return 1;
        if (u->mark != mark) {
            u->mark = mark;
            for (int i = 0; i < u->after_count; i++)
                if (depends(u->after[i].task, other, mark)) return 1;
            if (u->waits_for && depends(u->waits_for, other, mark)) return 1;
        }
        if (u == t) return 0;
    }
    return 0;
}

static uint64_t marks;

int qk_task_wait(qk_task *t, int64_t nanoseconds) {
    int result = 1, timed_out = 0;
    if (atomic_load_explicit(&t->state, memory_order_acquire) >= QK_DONE) return 1;
    pthread_mutex_lock(&qk_tasks);
    qk_task *own = qk_task_running;
    if (t->state < QK_DONE && own && depends(t, own, ++marks)) {
        result = -1;
    } else if (t->state < QK_DONE) {
        pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
        const struct timespec until = qk_deadline(nanoseconds);
        qk_waiter waiter = {&wake, NULL};
        qk_task_watch(t, &waiter);
        if (own) own->waits_for = t;
        while (t->state < QK_DONE && !timed_out) timed_out = pthread_cond_timedwait(&wake, &qk_tasks, &until) != 0;
        if (own) own->waits_for = NULL;
        result = t->state >= QK_DONE;
        if (!result) qk_task_unwatch(t, &waiter);
        pthread_cond_destroy(&wake);
    }
    pthread_mutex_unlock(&qk_tasks);
    return result;
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

static qk_task *next_before(qk_task *t, const qk_task *own) {
    if (!t || t->state >= QK_DONE) return NULL;
    if (!own || !depends(t, own, ++marks)) return t;
    for (int i = 0; i < t->after_count; i++) {
        qk_task *found = next_before(t->after[i].task, own);
        if (found) return found;
    }
    return NULL;
}

qk_task *qk_hazards_next(const qk_hazards *h, int writes) {
    pthread_mutex_lock(&qk_tasks);
    qk_task *found = next_before(h->writer, qk_task_running);
    if (writes)
        for (int i = 0; !found && i < h->count; i++) found = next_before(h->readers[i], qk_task_running);
    if (found) found->refs++;
    pthread_mutex_unlock(&qk_tasks);
    return found;
}

void *qk_hazards_failed(const qk_hazards *h) {
    pthread_mutex_lock(&qk_tasks);
    void *owner = h->writer && h->writer->state > QK_DONE ? h->writer->owner : NULL;
    pthread_mutex_unlock(&qk_tasks);
    return owner;
}

/* The bytes are gone: nobody else looks at their hazards, so that the lock guards the tasks alone. */
int qk_hazards_clear(qk_hazards *h) {
    int more = 0;
    for (int i = -1; i < h->count; i++) {
        qk_task *t = i < 0 ? h->writer : h->readers[i];
        if (!t || unref_unless_last(t)) continue;
        pthread_mutex_lock(&qk_tasks);
        more |= qk_task_unref_locked(t);
        pthread_mutex_unlock(&qk_tasks);
    }
    free(h->readers);
    *h = (qk_hazards){0};
    return more;
}

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
