#include "qk_task.h"

#include <stdlib.h>

pthread_mutex_t qk_tasks = PTHREAD_MUTEX_INITIALIZER;
_Thread_local qk_task *qk_task_running;
int qk_finished_count;
static qk_task *first_finished, *last_finished;

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
    qk_task *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->refs = 1;
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

void qk_task_unref_locked(qk_task *t) {
    if (--t->refs) return;
    if (t->cause) {
        qk_task *cause = t->cause;
        t->cause = NULL;
        qk_task_unref_locked(cause);
    }
    for (int i = 0; i < t->after_count; i++) qk_task_unref_locked(t->after[i].task);
    t->after_count = 0;
    if (t->owner && t->state >= QK_DONE) {
        t->refs = 1;
        t->dead = 1;
        hand_over(t);
        return;
    }
    free(t->after);
    free(t->calls);
    free(t);
}

void qk_task_ref(qk_task *t) {
    pthread_mutex_lock(&qk_tasks);
    t->refs++;
    pthread_mutex_unlock(&qk_tasks);
}

void qk_task_unref(qk_task *t) {
    pthread_mutex_lock(&qk_tasks);
    qk_task_unref_locked(t);
    pthread_mutex_unlock(&qk_tasks);
}

int qk_task_add(qk_task *t, const qk_call *call) {
    if (t->call_count == t->call_room) {
        const int room = t->call_room ? 2 * t->call_room : 1;
        qk_call *calls = realloc(t->calls, sizeof *calls * (size_t)room);
        if (!calls) return -1;
        t->calls = calls;
        t->call_room = room;
    }
    t->calls[t->call_count++] = *call;
    return 0;
}

static int reserve(qk_task *t, int more) {
    if (t->after_count + more <= t->after_room) return 0;
    const int room = 2 * t->after_room > t->after_count + more ? 2 * t->after_room : t->after_count + more;
    qk_after *after = realloc(t->after, sizeof *after * (size_t)room);
    if (!after) return -1;
    t->after = after;
    t->after_room = room;
    return 0;
}

/* A task that is over well is nothing to wait for; one that failed matters to those that use what it wrote. */
static void add_after(qk_task *t, qk_task *other, int reads) {
    if (other == t || (other->state >= QK_DONE && !(reads && other->state > QK_DONE))) return;
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
    t->state = state;
    t->finished = qk_nanoseconds();
    t->next = NULL;
    for (int i = 0; i < t->after_count; i++) qk_task_unref_locked(t->after[i].task);
    t->after_count = 0;
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
static int depends(const qk_task *t, const qk_task *other, uint64_t mark) {
    if (t == other) return 1;
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
    pthread_mutex_lock(&qk_tasks);
    const qk_outcome outcome = {t->state,  t->status,  t->fault,   t->cause ? t->cause->owner : NULL,
                                t->queued, t->started, t->finished};
    pthread_mutex_unlock(&qk_tasks);
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

int qk_hazards_clear(qk_hazards *h) {
    pthread_mutex_lock(&qk_tasks);
    for (int i = 0; i < h->count; i++) qk_task_unref_locked(h->readers[i]);
    const int before = qk_finished_count;
    if (h->writer) qk_task_unref_locked(h->writer);
    const int more = qk_finished_count > before;
    pthread_mutex_unlock(&qk_tasks);
    free(h->readers);
    *h = (qk_hazards){0};
    return more;
}

qk_task *qk_take_finished(void) {
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
