/* Threads that share one job at a time. A job is a sequence of units; each thread takes the next range of them when it
   has finished its last. So a busy core takes few or none, the caller waits only for ranges that were begun, and no
   result depends on the thread that computed it. */
#include "cpu.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

enum {
    RANGE = 12000,   /* least nanoseconds of a range; taking one costs some 200 */
    LOOKED = 20000,  /* nanoseconds that a thread spins for the next job before it sleeps */
    STACK = 2 << 20, /* bytes; amx.c unpacks a tile there */
};

static struct {
    pthread_mutex_t asked; /* held by the caller */
    pthread_mutex_t lock;  /* for sleeping threads */
    pthread_cond_t work, done;
    int threads, started; /* including the caller */
    Task *task;
    const void *with;
    int64_t count, least, finished; /* units; `least` units of a range */
    uint64_t left;                  /* the number of the job, and in the lower half its units not taken yet */
    int sleeping, waiting;
} team = {.asked = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER,
          .threads = 1,
          .started = 1};

#define GET(of) __atomic_load_n(&team.of, __ATOMIC_SEQ_CST)
#define SET(of, value) __atomic_store_n(&team.of, value, __ATOMIC_SEQ_CST)

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void rest(void) {
#if defined(__x86_64__)
    for (int i = 0; i < 8; i++) __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void wake(pthread_cond_t *those) {
    pthread_mutex_lock(&team.lock);
    pthread_cond_broadcast(those);
    pthread_mutex_unlock(&team.lock);
}

/* Computes ranges as long as there are any. Returns the last value of `left`. */
static uint64_t take_part(int number) {
    for (;;) {
        uint64_t seen = GET(left);
        const int64_t units = (int64_t)(seen & UINT32_MAX), count = GET(count), least = GET(least);
        if (!units || number >= GET(threads)) return seen;
        int64_t size = units / GET(threads);
        size = size < least ? least < units ? least : units : size;
        Task *const task = GET(task);
        const void *const with = GET(with);
        /* The fields read are of the job in `seen`, since the next job has another number. */
        if (!__atomic_compare_exchange_n(&team.left, &seen, seen - (uint64_t)size, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            continue;
        task(with, count - units, count - units + size, number);
        if (__atomic_add_fetch(&team.finished, size, __ATOMIC_SEQ_CST) == count && GET(waiting)) wake(&team.done);
    }
}

static void *help(void *number) {
    for (;;) {
        const uint64_t seen = take_part((int)(intptr_t)number);
        for (const int64_t end = nanoseconds() + LOOKED; GET(left) == seen && nanoseconds() < end;) rest();
        if (GET(left) != seen) continue;
        pthread_mutex_lock(&team.lock);
        SET(sleeping, team.sleeping + 1); /* before reading `left` again, or a call could be missed */
        while (GET(left) == seen) pthread_cond_wait(&team.work, &team.lock);
        SET(sleeping, team.sleeping - 1);
        pthread_mutex_unlock(&team.lock);
    }
    return 0;
}

/* Starts the threads asked for, or as many as the system allows. Signals are for the threads of the program. */
static void start(void) {
#if !defined(_WIN32)
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    pthread_attr_t with;
    pthread_attr_init(&with);
    pthread_attr_setstacksize(&with, STACK);
    pthread_attr_setdetachstate(&with, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    while (team.started < team.threads && !pthread_create(&thread, &with, help, (void *)(intptr_t)team.started))
        team.started++;
    SET(threads, team.started);
    pthread_attr_destroy(&with);
#if !defined(_WIN32)
    pthread_sigmask(SIG_SETMASK, &before, 0);
#endif
}

/* Sets the number of threads, including the caller, as far as the system allows. */
EXPORT void caesura_threads(int count) {
    pthread_mutex_lock(&team.asked);
    SET(threads, count < 1 ? 1 : count > THREADS ? THREADS : count);
    pthread_mutex_unlock(&team.asked);
}

void caesura_share(Task *task, const void *with, int64_t count, int64_t cost) {
    const int64_t least = 1 + RANGE / (cost + 1);
    if (count <= least || GET(threads) < 2 || pthread_mutex_trylock(&team.asked)) {
        task(with, 0, count, 0);
        return;
    }
    if (team.started < team.threads) start();
    SET(task, task), SET(with, with), SET(count, count), SET(least, least), SET(finished, 0);
    SET(left, ((GET(left) >> 32) + 1) << 32 | (uint64_t)count);
    if (GET(sleeping)) wake(&team.work);
    take_part(0);
    for (const int64_t end = nanoseconds() + LOOKED; GET(finished) < count && nanoseconds() < end;) rest();
    if (GET(finished) < count) {
        pthread_mutex_lock(&team.lock);
        SET(waiting, 1);
        while (GET(finished) < count) pthread_cond_wait(&team.done, &team.lock);
        SET(waiting, 0);
        pthread_mutex_unlock(&team.lock);
    }
    pthread_mutex_unlock(&team.asked);
}
