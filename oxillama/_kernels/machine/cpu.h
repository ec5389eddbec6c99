/* CPU features that the CPU and the operating system both support, found at run time; names as in targets.py. */
#ifndef OX_CPU_H
#define OX_CPU_H
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
static int ox_openmp_threads(void) { return omp_get_num_procs(); }
#else
static int ox_openmp_threads(void) { return 0; }
#endif

#if defined(__x86_64__) || defined(_M_X64) || defined(__i386__)
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
static int ox_cpu_has(const char *name) {
    int a[4], b[4];
    unsigned long long state;
    __cpuid(a, 1);
    if (!(a[2] >> 27 & 1)) return 0; /* no xgetbv: the system saves no wide registers */
    state = _xgetbv(0);
    __cpuidex(b, 7, 0);
    if ((state & 6) != 6) return 0;
    if (!strcmp(name, "avx2")) return b[1] >> 5 & 1;
    if (!strcmp(name, "fma")) return a[2] >> 12 & 1;
    if (!strcmp(name, "f16c")) return a[2] >> 29 & 1;
    if (!strcmp(name, "avx_vnni")) {
        if (b[0] < 1) return 0;
        __cpuidex(b, 7, 1);
        return b[0] >> 4 & 1;
    }
    if ((state & 0xe6) != 0xe6) return 0;
    if (!strcmp(name, "avx512f")) return b[1] >> 16 & 1;
    if (!strcmp(name, "avx512dq")) return b[1] >> 17 & 1;
    if (!strcmp(name, "avx512bw")) return b[1] >> 30 & 1;
    if (!strcmp(name, "avx512vl")) return b[1] >> 31 & 1;
    if (!strcmp(name, "avx512_vnni")) return b[2] >> 11 & 1;
    return 0;
}
#else
#include <cpuid.h>
static int ox_cpu_has(const char *name) {
    unsigned a, b, c, d;
    __builtin_cpu_init(); /* the compiler's own test, which asks the system about wide registers too */
    if (!strcmp(name, "avx2")) return !!__builtin_cpu_supports("avx2");
    if (!strcmp(name, "fma")) return !!__builtin_cpu_supports("fma");
    if (!strcmp(name, "f16c"))
        return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
    if (!strcmp(name, "avx_vnni"))
        return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
    if (!strcmp(name, "avx512f")) return !!__builtin_cpu_supports("avx512f");
    if (!strcmp(name, "avx512dq")) return !!__builtin_cpu_supports("avx512dq");
    if (!strcmp(name, "avx512bw")) return !!__builtin_cpu_supports("avx512bw");
    if (!strcmp(name, "avx512vl")) return !!__builtin_cpu_supports("avx512vl");
    if (!strcmp(name, "avx512_vnni"))
        return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1);
    if (!strcmp(name, "amx_tile")) return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1);
    if (!strcmp(name, "amx_int8")) return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 25 & 1);
    if (!strcmp(name, "avx512_bf16"))
        return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    return 0;
}
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
static int ox_cpu_has(const char *name) { /* bits of Linux' arch/arm64/include/uapi/asm/hwcap.h */
    if (!strcmp(name, "asimddp")) return getauxval(AT_HWCAP) >> 20 & 1;
    if (!strcmp(name, "i8mm")) return getauxval(AT_HWCAP2) >> 13 & 1;
    return 0;
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
static int ox_cpu_has(const char *name) {
    int found = 0;
    size_t size = sizeof found;
    if (!strcmp(name, "asimddp")) return 1; /* every Apple CPU has it */
    return !strcmp(name, "i8mm") && !sysctlbyname("hw.optional.arm.FEAT_I8MM", &found, &size, NULL, 0) && found;
}
#else
static int ox_cpu_has(const char *name) { (void)name; return 0; }
#endif

/* Asks the system for the tile registers of AMX in all threads of this process: 0 or errno. It refuses if a thread's
 * stack for signals is too small for them. A forked process inherits the permission. */
#if defined(__linux__) && defined(__x86_64__)
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
static int ox_ask_for_tiles(void) { /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, 0x1023, 18) ? errno : 0;
}
#else
#include <errno.h>
static int ox_ask_for_tiles(void) { return ENOSYS; }
#endif

#endif
