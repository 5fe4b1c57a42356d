/* CPUs with AVX512-VNNI: Intel from Ice Lake on, AMD from Zen 4 on. */
#include "cpu.h"
#include "target.h"

#if defined(__x86_64__)
#include <immintrin.h>
TARGETED("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

#define VARIANT avx512
#define RUNS runs
#define LANES 16
#define BLOCK 8
#define WIDE 2

#include "avx512.h"

static int runs(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c");
}

#include "generic.h"
TARGETED_END
#endif
