/* Preloaded by test_clock.py: a wall clock that is wrong by as many seconds as the file of CAESURA_TEST_JUMP says. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define THE_REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long wrong(void)
{
	long seconds = 0;
	FILE *file = fopen(getenv("CAESURA_TEST_JUMP"), "re");
	if (file) {
		if (fscanf(file, "%ld", &seconds) != 1)
			seconds = 0;
		fclose(file);
	}
	return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed = THE_REAL(clock_gettime)(clock, now);
	if (!failed && clock == CLOCK_REALTIME)
		now->tv_sec += wrong();
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	int failed = THE_REAL(gettimeofday)(now, zone);
	if (!failed)
		now->tv_sec += wrong();
	return failed;
}

time_t time(time_t *kept)
{
	time_t now = THE_REAL(time)(NULL) + wrong();
	if (kept)
		*kept = now;
	return now;
}
