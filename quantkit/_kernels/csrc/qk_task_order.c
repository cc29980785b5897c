/* What a task must wait for: hazards, dependencies, and the search that finds a wait without an end. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "qk_task.h"

#include <stdlib.h>

static int reserve(qk_task *t, int more) {
    if (t->after_count + more <= t->after_room) return 0;
    const int room = 2 * t->after_room > t->after_count + more ? 2 * t->after_room : t->after_count + more;
    qk_after *after = qk_task_grow(t->after, t->few, t->after_count, room, sizeof *after);
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

qk_task *qk_task_unfinished_dependency(const qk_task *t) {
    for (int i = 0; i < t->after_count; i++) {
        qk_task *found = qk_task_unfinished(t->after[i].task);
        if (found) return found;
    }
    return NULL;
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
        if (!t || qk_task_unref_unless_last(t)) continue;
        pthread_mutex_lock(&qk_tasks);
        more |= qk_task_unref_locked(t);
        pthread_mutex_unlock(&qk_tasks);
    }
    free(h->readers);
    *h = (qk_hazards){0};
    return more;
}
