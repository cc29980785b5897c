/* Streams: ordered queues of tasks, one worker thread each, and the hazards that order tasks of different streams.
 *
 * A task is one verb: calls that run one after the other. It waits for the tasks that it depends on, found when it is
 * pushed from the hazards of what it reads and writes: the last writer before a read, all readers and the last writer
 * before a write. Tasks only ever depend on tasks that were pushed before them, so nothing can wait in a circle, with
 * one exception: callables of the owner may wait for any task, and are told when that would never end.
 *
 * Nothing here knows Python. `owner` is whatever belongs to a task outside; whoever made it takes finished tasks by
 * qk_take_finished and lets go of it there, because the workers may not. */
#ifndef QK_STREAM_H
#define QK_STREAM_H

#include <stdint.h>

#include "qk_call.h"

typedef struct qk_stream qk_stream;
typedef struct qk_task qk_task;

/* From QK_DONE on a task is over. POISONED: what it reads was never made; `qk_task_cause` says by whom. */
typedef enum { QK_QUEUED, QK_RUNNING, QK_DONE, QK_FAILED, QK_POISONED, QK_CANCELLED, QK_FORKED } qk_state;

/* Who last wrote some bytes, and who reads them since. All zero at first; emptied by qk_hazards_clear. */
typedef struct {
    qk_task *writer;
    qk_task **readers;
    int count, room;
} qk_hazards;

/* How a task uses some bytes. */
typedef enum { QK_READS, QK_WRITES_ALL, QK_WRITES_PART } qk_use;

typedef struct {
    qk_hazards *hazards;
    qk_use use;
} qk_access;

typedef struct {
    qk_state state;
    int status;                 /* what the call that failed returned */
    const char *fault;          /* its text */
    void *cause;                /* owner of the task that poisoned this one */
    int64_t queued, started, finished; /* nanoseconds of the monotonic clock */
} qk_outcome;

/* The callable of a task's owner: returns one of QK_DONE, QK_FAILED, QK_CANCELLED. */
typedef qk_state qk_owner_fn(void *owner);

/* Set once: `finished` is called by workers when finished tasks wait to be taken; `left` when a worker ends. */
void qk_stream_hooks(void (*finished)(void), void (*left)(void));

/* A stream runs its calls on `threads` threads, 0 for as many as the pool has. NULL without memory. */
qk_stream *qk_stream_new(const char *name, int threads);
/* Let go of a stream: its worker ends once the queue is empty. */
void qk_stream_drop(qk_stream *stream);
/* Take no more tasks. */
void qk_stream_close(qk_stream *stream);
/* End all tasks that have not begun; returns how many. */
int qk_stream_cancel(qk_stream *stream);
/* The task that was pushed last and is not over, with a reference, or NULL. */
qk_task *qk_stream_tail(qk_stream *stream);
/* End all workers whose queue is empty, and wait for them at most so long; returns how many are left. */
int qk_streams_stop(int64_t nanoseconds);

/* A task with one reference. NULL without memory. */
qk_task *qk_task_new(void *owner, qk_owner_fn *run_owner);
void qk_task_ref(qk_task *task);
void qk_task_unref(qk_task *task);
/* Add a call, or a task to wait for; -1 without memory. */
int qk_task_add(qk_task *task, const qk_call *call);
int qk_task_after(qk_task *task, qk_task *other);
/* Queue a task, which then holds a reference of its own until it is taken. Returns 0; -1 without memory, -2 where the
 * stream is closed, -3 where no thread can be started. */
int qk_stream_push(qk_stream *stream, qk_task *task, const qk_access *accesses, int count);

/* Wait until a task is over, at most so long. Returns 1; 0 when time is up; -1 where the calling task would wait for
 * itself. */
int qk_task_wait(qk_task *task, int64_t nanoseconds);
qk_outcome qk_task_outcome(qk_task *task);
/* Whether the caller is the worker of some stream. */
int qk_on_worker(void);

/* The next task, with a reference, that the caller must wait for before it uses the bytes, or NULL. Tasks that wait
 * for the caller's own are passed over: they come later, and have not begun. */
qk_task *qk_hazards_next(const qk_hazards *hazards, int writes);
/* Owner of the last writer where it left no values, else NULL. */
void *qk_hazards_failed(const qk_hazards *hazards);
/* Returns whether tasks wait to be taken since. */
int qk_hazards_clear(qk_hazards *hazards);

/* Finished tasks, linked by qk_task_next: each has one reference to drop, and its owner to let go of:
 * qk_task_drop_owner unless it failed, where waiters may still ask for it until it is returned with `dead` set. */
qk_task *qk_take_finished(void);
qk_task *qk_task_next(const qk_task *task);
void *qk_task_owner(const qk_task *task, int *dead);
void qk_task_drop_owner(qk_task *task);

#endif
