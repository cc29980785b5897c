/* Tasks of streams: what they hold, when they are over, and who waits for them. One lock guards all of it: it is held
 * for moments only, and never while somebody waits for anything else. */
#ifndef QK_TASK_H
#define QK_TASK_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "qk_stream.h"

typedef struct qk_waiter {
    pthread_cond_t *wake;
    struct qk_waiter *next;
} qk_waiter;

typedef struct {
    qk_task *task;
    int reads; /* whether what it wrote is used: then its failure is ours */
} qk_after;

#define QK_FEW 4 /* dependencies that a task has room for without memory of its own */

struct qk_task {
    atomic_int refs;
    _Atomic qk_state state; /* the last that is written when a task is over: then all else stands */
    qk_task *next;         /* in the stream's queue */
    qk_task **stream_head; /* of that queue */
    qk_call *calls;
    int call_count, call_room;
    qk_after *after;
    int after_count, after_room;
    qk_waiter *waiters;
    qk_task *waits_for; /* what the owner's callable is waiting for now */
    qk_task *cause;     /* the task that poisoned this one, with a reference */
    uint64_t mark;      /* of the last search that came by */
    int status;
    const char *fault;
    void *owner;
    qk_owner_fn *run_owner;
    qk_task *next_finished;
    int dead; /* no references were left, but an owner */
    int64_t queued, started, finished;
    qk_after few[QK_FEW];
    qk_call one; /* most tasks have one call */
};

extern pthread_mutex_t qk_tasks;
extern _Thread_local qk_task *qk_task_running; /* on the calling thread */
extern atomic_int qk_finished_count;           /* tasks that wait to be taken */

/* The lock as it is at first, again in a forked child. */
void qk_tasks_init(void);

int64_t qk_nanoseconds(void);
struct timespec qk_deadline(int64_t nanoseconds); /* from now on, for condition variables */

/* All of these with the lock held. `unref` returns whether the task now waits to be taken. */
void qk_task_end(qk_task *task, qk_state state);
int qk_task_unref_locked(qk_task *task);
void qk_task_watch(qk_task *task, qk_waiter *waiter);
void qk_task_unwatch(qk_task *task, qk_waiter *waiter);
/* The task that whoever comes after this one must wait for now, or NULL; and what the task itself must wait for. */
qk_task *qk_task_unfinished(qk_task *task);
qk_task *qk_task_unfinished_dependency(const qk_task *task);
/* Find what a task must wait for, and enter it in the hazards; -1 without memory, with nothing entered. */
int qk_task_order(qk_task *task, const qk_access *accesses, int count);
/* The task, with a new reference, to which it is owed that what this one reads does not exist; or NULL. */
qk_task *qk_task_poison(const qk_task *task);

/* Without the lock: */
qk_state qk_task_run(qk_task *task); /* all of its calls, or its owner */
int qk_task_unref_unless_last(qk_task *task); /* whether it was not, and is dropped */
/* Room for `count` elements where there were `had` in the task itself (`own`) or in memory of their own; NULL without
 * memory. */
void *qk_task_grow(void *array, const void *own, int had, int count, size_t size);

#endif
