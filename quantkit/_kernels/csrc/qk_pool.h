/* One pool of threads for the process: fork-join over numbered tasks. It starts with the first work that wants it, is
 * fresh in a forked child, and sleeps when there is nothing to do. Work that finds the pool busy runs on its caller. */
#ifndef QK_POOL_H
#define QK_POOL_H

typedef void qk_task_fn(void *arg, int task);

/* Run fn(arg, 0..tasks-1), each once, on at most `threads` threads, the caller's among them; returns when all are
 * done. Tasks are taken in order, but nothing else may be assumed: results must not depend on who runs what. */
void qk_parallel(qk_task_fn *fn, void *arg, int tasks, int threads);

/* How many threads the pool may use, the caller's included; where a limit is set for the calling thread, that. */
void qk_set_num_threads(int threads);
int qk_num_threads(void);

/* Limit the work of the calling thread to so many threads, itself included; 0 lifts the limit. */
void qk_limit_threads(int threads);

#endif
