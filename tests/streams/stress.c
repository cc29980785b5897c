/* Streams without Python, for ThreadSanitizer: random tasks over 8 streams that read and write 16 cells through their
 * hazards, with events, cancels and waits from several threads, compared with what the order of pushing says. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "qk_stream.h"

enum { STREAMS = 8, CELLS = 16, TASKS = 4000 };

static qk_stream *streams[STREAMS];
static qk_hazards hazards[CELLS];
static uint32_t cells[CELLS], expected[CELLS];
static uint32_t seed = 1;

static uint32_t random_number(void) { return seed = seed * 1664525u + 1013904223u, seed >> 8; }

/* cell[to] = 31 * cell[to] + cell[from] + 1, smuggled through a call of another verb. */
static int add(const qk_call *call) {
    uint32_t *to = (uint32_t *)call->copy.y;
    *to = 31 * *to + *(const uint32_t *)call->copy.x + 1;
    return 0;
}

static void drop_finished(void) {
    int dead;
    for (qk_task *t = qk_take_finished(), *next; t; t = next) {
        next = qk_task_next(t);
        qk_task_owner(t, &dead);
        qk_task_drop_owner(t);
        qk_task_unref(t);
    }
}

static void *watch(void *unused) {
    (void)unused;
    for (int i = 0; i < 300; i++) {
        qk_task *t = qk_stream_tail(streams[i % STREAMS]);
        if (t) {
            qk_task_wait(t, i % 3 ? 1000000000 : 1000);
            (void)qk_task_outcome(t);
            qk_task_unref(t);
        }
        drop_finished();
    }
    return NULL;
}

int main(void) {
    pthread_t watchers[2];
    for (int i = 0; i < STREAMS; i++) streams[i] = qk_stream_new("stress", 1);
    for (int i = 0; i < 2; i++) pthread_create(&watchers[i], NULL, watch, NULL);
    for (int i = 0; i < TASKS; i++) {
        qk_stream *s = streams[random_number() % STREAMS];
        const int from = (int)(random_number() % CELLS), to = (int)(random_number() % CELLS);
        qk_task *t = qk_task_new(NULL, NULL);
        if (random_number() % 8 == 0) {
            qk_task *tail = qk_stream_tail(streams[random_number() % STREAMS]);
            if (tail) {
                qk_task_after(t, tail);
                qk_task_unref(tail);
            }
        }
        qk_call call = {.run = add};
        call.copy.x = (const char *)&cells[from];
        call.copy.y = (char *)&cells[to];
        qk_task_add(t, &call);
        const qk_access accesses[] = {{&hazards[from], QK_READS}, {&hazards[to], QK_READS}, {&hazards[to], QK_WRITES_ALL}};
        if (qk_stream_push(s, t, accesses, 3)) return 2;
        expected[to] = 31 * expected[to] + expected[from] + 1;
        qk_task_unref(t);
        if (i % 64 == 0) drop_finished();
    }
    for (int i = 0; i < CELLS; i++) {
        for (qk_task *t; (t = qk_hazards_next(&hazards[i], 1)); qk_task_unref(t)) qk_task_wait(t, 1000000000);
        if (cells[i] != expected[i]) return printf("cell %d: %u, wanted %u\n", i, cells[i], expected[i]), 1;
    }
    for (int i = 0; i < 2; i++) pthread_join(watchers[i], NULL);
    /* Tasks that depend on one another, cancelled while they run: whatever happened, all of them are over. */
    for (int i = 0; i < 400; i++) {
        qk_task *t = qk_task_new(NULL, NULL);
        qk_call call = {.run = add};
        call.copy.x = (const char *)&cells[0];
        call.copy.y = (char *)&cells[1];
        qk_task_add(t, &call);
        const qk_access accesses[] = {{&hazards[0], QK_READS}, {&hazards[1], QK_WRITES_ALL}};
        if (qk_stream_push(streams[i % STREAMS], t, accesses, 2)) return 2;
        qk_task_unref(t);
        if (i % 50 == 49) qk_stream_cancel(streams[random_number() % STREAMS]);
    }
    for (int i = 0; i < STREAMS; i++) {
        qk_task *t = qk_stream_tail(streams[i]);
        if (t) {
            qk_task_wait(t, 10000000000ll);
            qk_task_unref(t);
        }
    }
    for (int i = 0; i < CELLS; i++) qk_hazards_clear(&hazards[i]);
    for (int i = 0; i < STREAMS; i++) qk_stream_drop(streams[i]);
    if (qk_streams_stop(10000000000ll)) return 3;
    drop_finished();
    puts("equal");
    return 0;
}
