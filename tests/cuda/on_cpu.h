// A GPU for the kernels, in host C++: the threads of a block are coroutines of one thread.
//
// They are switched at barriers, where a random one goes on, so that a missing barrier shows. Operations of a warp happen
// when all its lanes have come to them. Copies to shared memory that nobody waits for are made as late as that allows.
// Shared memory begins as noise.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define ON_CPU 1
#define DEVICE inline
#define __shared__ static
#define __launch_bounds__(...)

typedef unsigned char byte_t;

struct dim3_t { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- coroutines ----------------------------------------------------------------------------------------------------

extern "C" void qk_switch(void **save, void *load);
__asm__(
    ".text\n.globl qk_switch\n.hidden qk_switch\n.type qk_switch,@function\nqk_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size qk_switch,.-qk_switch\n.section .note.GNU-stack,\"\",@progbits\n.text\n");

enum State { READY, AT_BARRIER, AT_WARP, OVER };

struct Thread {
    void *stack_pointer;
    State state;
    unsigned id;
    void *argument;  // of the operation of its warp
    struct Later { byte_t *to; const byte_t *from; unsigned bytes; };
    std::vector<std::vector<Later>> copies;
};

static const size_t STACK = 64 << 10;
static std::vector<Thread> threads;
static byte_t *stacks;
static Thread *now;
static void *scheduler;
static dim3_t blockIdx, blockDim, gridDim;
static byte_t shared_memory[1 << 20] __attribute__((aligned(128)));
static size_t shared_bytes;
static const char *fault;
static void (*body)(void *);
static void *body_argument;
static uint64_t dice = 88172645463325252ull;

static unsigned roll() {
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (unsigned)(dice >> 32);
}

struct ThreadIndex {
    struct X { operator unsigned() const { return now->id; } } x;
};
static ThreadIndex threadIdx;

static void pause_in(State state) {
    now->state = state;
    qk_switch(&now->stack_pointer, scheduler);
}

static void start() {
    body(body_argument);
    pause_in(OVER);
    abort();
}

static inline void __syncthreads() { pause_in(AT_BARRIER); }

// An operation of all 32 lanes: the last to come performs it on the arguments of all.
static void together(void *argument, void (*perform)(void **)) {
    Thread *lanes = &threads[now->id & ~31u];
    now->argument = argument;
    for (int l = 0; l < 32; l++)
        if (&lanes[l] != now && lanes[l].state != AT_WARP) return pause_in(AT_WARP);
    void *arguments[32];
    for (int l = 0; l < 32; l++) arguments[l] = lanes[l].argument;
    perform(arguments);
    for (int l = 0; l < 32; l++) lanes[l].state = READY;
}

static void run_block() {
    const unsigned count = blockDim.x;
    threads.resize(count);
    for (unsigned t = 0; t < count; t++) {
        void **top = (void **)(stacks + (t + 1) * STACK);
        *--top = nullptr;
        *--top = (void *)start;  // where the first switch returns to, with the stack as after a call
        top -= 6;
        threads[t].stack_pointer = top;
        threads[t].state = READY;
        threads[t].id = t;
        threads[t].copies.assign(1, {});
    }
    for (size_t i = 0; i < shared_bytes; i++) shared_memory[i] = (byte_t)roll();
    for (;;) {
        unsigned over = 0, waiting = 0, ran = 0;
        const unsigned first = roll() % count, step = roll() % 2 ? 1 : count - 1;
        for (unsigned i = 0, t = first; i < count; i++, t = (t + step) % count) {
            if (threads[t].state == READY) {
                now = &threads[t];
                qk_switch(&scheduler, now->stack_pointer);
                ran++;
            }
        }
        for (Thread &t : threads) over += t.state == OVER, waiting += t.state == AT_BARRIER;
        if (over == count) break;
        if (over + waiting == count) {
            for (Thread &t : threads)
                if (t.state == AT_BARRIER) t.state = READY;
        } else if (!ran) {
            fault = "lanes of a warp wait for lanes that do something else";
            return;
        }
    }
    for (Thread &t : threads)
        for (auto &group : t.copies)
            if (!group.empty()) fault = "a block ended with copies on their way";
}

// ---- what the hardware does ----------------------------------------------------------------------------------------

static inline void __syncwarp() { together(nullptr, [](void **) {}); }

#if TENSOR_CORES
static inline void copies_begun() { now->copies.emplace_back(); }
template <int N> static inline void copies_wait() {
    auto &copies = now->copies;  // the last group has not begun yet
    while ((int)copies.size() - 1 > N) {
        for (auto &c : copies.front()) {
            memset(c.to, 0, 16);
            memcpy(c.to, c.from, c.bytes);
        }
        copies.erase(copies.begin());
    }
}
static inline void copy16_async(byte_t *to, const byte_t *from, unsigned bytes) {
    if (((uintptr_t)to | (uintptr_t)from) & 15) fault = "a copy of 16 bytes that is not aligned";
    if (to < shared_memory || to + 16 > shared_memory + shared_bytes) fault = "a copy beyond shared memory";
    now->copies.back().push_back({to, from, bytes});
}

#endif

struct Matrices { unsigned *r; const byte_t *row; };
static inline void load_matrices(unsigned (&r)[4], const byte_t *row) {
    if ((uintptr_t)row & 15) fault = "a row of a matrix that is not aligned";
    Matrices own = {r, row};
    together(&own, [](void **all) {
        for (int lane = 0; lane < 32; lane++)
            for (int m = 0; m < 4; m++)
                memcpy(&((Matrices *)all[lane])->r[m], ((Matrices *)all[m * 8 + lane / 4])->row + lane % 4 * 4, 4);
    });
}

struct Multiply { int *c; const unsigned *a, *b; };
static inline void multiply(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    Multiply own = {c, a, b};
    together(&own, [](void **all) {
        byte_t left[16][32];
        signed char right[8][32];
        for (int lane = 0; lane < 32; lane++) {
            const Multiply &own = *(Multiply *)all[lane];
            const int row = lane / 4, k = lane % 4 * 4;
            for (int j = 0; j < 4; j++) memcpy(&left[row + j % 2 * 8][k + j / 2 * 16], &own.a[j], 4);
            for (int j = 0; j < 2; j++) memcpy(&right[row][k + j * 16], &own.b[j], 4);
        }
        for (int lane = 0; lane < 32; lane++)
            for (int j = 0; j < 4; j++) {
                const byte_t *x = left[lane / 4 + j / 2 * 8];
                const signed char *y = right[lane % 4 * 2 + j % 2];
                int sum = 0;
                for (int k = 0; k < 32; k++) sum += x[k] * y[k];
                unsigned &to = (unsigned &)((Multiply *)all[lane])->c[j];
                to += (unsigned)sum;
            }
    });
}
static inline int dot4(unsigned a, unsigned b, int c) {
    for (int j = 0; j < 4; j++) c = (int)((unsigned)c + (unsigned)((int)(byte_t)(a >> 8 * j) * (signed char)(b >> 8 * j)));
    return c;
}

static inline unsigned __float_as_uint(float x) { unsigned u; memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; memcpy(&x, &u, 4); return x; }
static inline long long __double_as_longlong(double x) { long long u; memcpy(&u, &x, 8); return u; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline float __int2float_rn(int x) { return (float)x; }
template <class T> static inline T atomicAdd(T *at, T value) { T old = *at; *at += value; return old; }

// ---- launching -----------------------------------------------------------------------------------------------------

struct Entry_t { const char *name; size_t bytes; unsigned threads; void (*run)(void *); };
static std::vector<Entry_t> &entries() {
    static std::vector<Entry_t> all;
    return all;
}
struct Registered {
    Registered(const char *name, size_t bytes, unsigned threads, void (*run)(void *)) { entries().push_back({name, bytes, threads, run}); }
};
#define KERNEL(name, Args, threads_, blocks)                                                                      \
    static void name(const Args g);                                                                               \
    static Registered registered_##name(#name, sizeof(Args), threads_, [](void *p) { name(*(const Args *)p); });  \
    static void name(const Args g)
#define DYNAMIC_SHARED(name) byte_t *name = shared_memory

extern "C" {
// Bytes of the struct that a kernel takes, or -1 where there is no such kernel.
long qk_kernel_bytes(const char *name) {
    for (const Entry_t &e : entries())
        if (!strcmp(e.name, name)) return (long)e.bytes;
    return -1;
}
const char *qk_kernel_name(unsigned i) { return i < entries().size() ? entries()[i].name : nullptr; }

// Runs a kernel; returns NULL, or what it did wrong.
const char *qk_launch(const char *name, unsigned x, unsigned y, unsigned z, unsigned count, size_t dynamic, void *argument) {
    fault = nullptr;
    if (!stacks) stacks = (byte_t *)aligned_alloc(4096, 1024 * STACK);
    for (const Entry_t &e : entries()) {
        if (strcmp(e.name, name)) continue;
        if (count > e.threads) return "more threads than the launch bounds allow";
        if (dynamic > sizeof shared_memory) return "too much shared memory";
        if (!x || !y || !z || y > 65535 || z > 65535) return "an empty or too large grid";
        gridDim = {x, y, z}, blockDim = {count, 1, 1}, shared_bytes = dynamic, body = e.run, body_argument = argument;
        for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z++)
            for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y++)
                for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) {
                    run_block();
                    if (fault) return fault;
                }
        return nullptr;
    }
    return "no such kernel";
}
}
