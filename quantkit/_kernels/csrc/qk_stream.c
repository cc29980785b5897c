#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "qk_stream.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "qk_pool.h"
#include "qk_task.h"

#define SPIN_NANOSECONDS 20000 /* how long a worker looks for more work before it sleeps */
#define MANY 64                /* finished tasks that are worth a call while the stream is busy */

struct qk_stream {
    qk_task *head, *tail; /* the running task is the head */
    pthread_cond_t wake;
    atomic_int queued; /* what a spinning worker looks at; a moment behind the queue */
    int asleep, closed, dropped, started, threads;
    unsigned generation;
    char name[16];
    qk_stream *next, *previous; /* of all streams */
};

static struct {
    qk_stream *streams;
    unsigned generation; /* counts forks */
    int workers;         /* threads alive */
    int busy;            /* of them running or looking for work */
    int stopping, cpus;
    void (*finished)(void), (*left)(void);
    pthread_cond_t gone;
} all = {.gone = PTHREAD_COND_INITIALIZER};

void qk_stream_hooks(void (*finished)(void), void (*left)(void)) {
    all.finished = finished;
    all.left = left;
}

static void drop_stream(qk_stream *s) {
    if (s->next) s->next->previous = s->previous;
    if (s->previous) s->previous->next = s->next;
    else all.streams = s->next;
    pthread_cond_destroy(&s->wake);
    free(s);
}

/* Take a task out of its queue, and end it. */
static void end(qk_stream *s, qk_task *t, qk_task *before, qk_state state) {
    if (before) before->next = t->next;
    else s->head = t->next;
    if (s->tail == t) s->tail = before;
    atomic_fetch_sub_explicit(&s->queued, 1, memory_order_relaxed);
    qk_task_end(t, state);
}

/* Threads do not survive fork: what they would have done is over in the child, and each stream begins anew. */
static void before_fork(void) { pthread_mutex_lock(&qk_tasks); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&qk_tasks); }
static void after_fork_in_child(void) {
    qk_tasks_init();
    pthread_cond_init(&all.gone, NULL);
    all.generation++;
    all.workers = all.busy = 0;
    qk_task_running = NULL;
    qk_limit_threads(0);
    for (qk_stream *s = all.streams, *next; s; s = next) {
        next = s->next;
        pthread_cond_init(&s->wake, NULL);
        s->asleep = s->started = 0;
        while (s->head) {
            s->head->waiters = NULL; /* those threads are gone as well */
            end(s, s->head, NULL, QK_FORKED);
        }
        atomic_store(&s->queued, 0); /* a push may have been on its way */
        if (s->dropped) drop_stream(s);
    }
}

static void prepare(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    all.cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
}

qk_stream *qk_stream_new(const char *name, int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    qk_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_cond_init(&s->wake, NULL);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->threads = threads;
    pthread_mutex_lock(&qk_tasks);
    s->next = all.streams;
    if (s->next) s->next->previous = s;
    all.streams = s;
    pthread_mutex_unlock(&qk_tasks);
    return s;
}

void qk_stream_close(qk_stream *s) {
    pthread_mutex_lock(&qk_tasks);
    s->closed = 1;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&qk_tasks);
}

void qk_stream_drop(qk_stream *s) {
    pthread_mutex_lock(&qk_tasks);
    s->closed = s->dropped = 1;
    if (!s->started) drop_stream(s);
    else pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&qk_tasks);
}

int qk_stream_cancel(qk_stream *s) {
    int count = 0;
    pthread_mutex_lock(&qk_tasks);
    for (qk_task *before = NULL, *t = s->head, *next; t; t = next) {
        next = t->next;
        if (t->state == QK_RUNNING) before = t;
        else end(s, t, before, QK_CANCELLED), count++;
    }
    pthread_cond_signal(&s->wake); /* it may wait for what a cancelled task depends on */
    pthread_mutex_unlock(&qk_tasks);
    return count;
}

qk_task *qk_stream_tail(qk_stream *s) {
    pthread_mutex_lock(&qk_tasks);
    qk_task *tail = s->tail;
    if (tail) tail->refs++;
    pthread_mutex_unlock(&qk_tasks);
    return tail;
}

/* Look for work for a while where a CPU is free for that; the lock is not held meanwhile. */
static int found_by_spinning(qk_stream *s) {
    if (all.busy >= all.cpus) return 0; /* this worker counts as busy: what is left is for the caller */
    pthread_mutex_unlock(&qk_tasks);
    const int64_t until = qk_nanoseconds() + SPIN_NANOSECONDS;
    int found = 0;
    do {
        for (int i = 0; i < 64 && !(found = atomic_load_explicit(&s->queued, memory_order_relaxed) > 0); i++) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
    } while (!found && qk_nanoseconds() < until);
    pthread_mutex_lock(&qk_tasks);
    return s->head != NULL;
}

static void sleep_on(qk_stream *s) {
    s->asleep = 1;
    all.busy--;
    pthread_cond_wait(&s->wake, &qk_tasks);
    all.busy++;
    s->asleep = 0;
}

/* Ask for finished tasks to be taken, of which there are some. */
static void tell_finished(void) {
    if (!all.finished) return;
    pthread_mutex_unlock(&qk_tasks);
    all.finished();
    pthread_mutex_lock(&qk_tasks);
}

static void run_head(qk_stream *s, qk_task *t) {
    qk_state state = QK_DONE;
    t->cause = qk_task_poison(t);
    t->state = QK_RUNNING;
    t->started = qk_nanoseconds();
    if (t->cause) {
        state = QK_POISONED;
    } else {
        const unsigned generation = s->generation;
        pthread_mutex_unlock(&qk_tasks);
        qk_task_running = t;
        state = qk_task_run(t);
        qk_task_running = NULL;
        pthread_mutex_lock(&qk_tasks);
        if (generation != all.generation) return; /* forked meanwhile, and this is the child: the task is over */
    }
    end(s, t, NULL, state);
    if (qk_finished_count >= MANY) tell_finished();
}

static void *work(void *argument) {
    qk_stream *s = argument;
#ifdef __linux__
    pthread_setname_np(pthread_self(), s->name);
#endif
    qk_limit_threads(s->threads);
    pthread_mutex_lock(&qk_tasks);
    const unsigned generation = s->generation;
    int told = 0; /* that tasks are over, since the last of this worker was */
    while (generation == all.generation) {
        qk_task *t = s->head, *first = t ? qk_task_unfinished_dependency(t) : NULL;
        if (t && !first) {
            run_head(s, t);
            told = 0;
            continue;
        }
        if (!t && (s->closed || all.stopping)) break;
        if (!t && !told && found_by_spinning(s)) continue;
        if (!told && qk_finished_count) { /* not before: whoever queues more takes them on the way */
            told = 1;
            tell_finished();
            continue;
        }
        if (!t) {
            if (!s->closed && !all.stopping && generation == all.generation) sleep_on(s);
            continue;
        }
        qk_waiter waiter = {&s->wake, NULL};
        first->refs++;
        qk_task_watch(first, &waiter);
        sleep_on(s);
        qk_task_unwatch(first, &waiter);
        qk_task_unref_locked(first);
    }
    if (generation == all.generation) {
        s->started = 0;
        if (s->dropped) drop_stream(s);
        pthread_mutex_unlock(&qk_tasks);
        if (all.finished && qk_finished_count) all.finished();
        if (all.left) all.left();
        pthread_mutex_lock(&qk_tasks);
        all.busy--;
        all.workers--;
        pthread_cond_broadcast(&all.gone);
    }
    pthread_mutex_unlock(&qk_tasks);
    return NULL;
}

static int start(qk_stream *s) {
    pthread_t thread;
    pthread_attr_t attributes;
    s->generation = all.generation;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const int failed = pthread_create(&thread, &attributes, work, s);
    pthread_attr_destroy(&attributes);
    if (failed) return -3;
    s->started = 1;
    all.workers++;
    all.busy++;
    return 0;
}

int qk_stream_push(qk_stream *s, qk_task *t, const qk_access *accesses, int count) {
    pthread_mutex_lock(&qk_tasks);
    int status = s->closed || all.stopping ? -2 : s->started ? 0 : start(s), wake = 0;
    if (!status) status = qk_task_order(t, accesses, count);
    if (!status) {
        t->refs++;
        t->stream_head = &s->head;
        t->queued = qk_nanoseconds();
        if (s->tail) s->tail->next = t;
        else s->head = t;
        s->tail = t;
        wake = s->asleep && s->head == t;
    }
    pthread_mutex_unlock(&qk_tasks);
    if (status) return status;
    /* Only now, so that the worker that sees it does not run into the lock. */
    atomic_fetch_add_explicit(&s->queued, 1, memory_order_relaxed);
    if (wake) pthread_cond_signal(&s->wake);
    return 0;
}

int qk_streams_stop(int64_t nanoseconds) {
    struct timespec until = qk_deadline(nanoseconds);
    pthread_mutex_lock(&qk_tasks);
    all.stopping = 1;
    for (qk_stream *s = all.streams; s; s = s->next) pthread_cond_signal(&s->wake);
    while (all.workers && pthread_cond_timedwait(&all.gone, &qk_tasks, &until) == 0) {}
    const int left = all.workers;
    pthread_mutex_unlock(&qk_tasks);
    return left;
}
