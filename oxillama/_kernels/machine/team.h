/* The processors of an OpenMP team's threads, moving apart threads that share one, and the NUMA nodes of memory. */
#ifndef OX_TEAM_H
#define OX_TEAM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#if defined(_OPENMP) && defined(__linux__)
#include <omp.h>
#include <sched.h>
#include <stdio.h>

/* cpus[i] = the processor of thread i of a team of n; -1 for a thread that the team does not have */
static void ox_team(int n, int *cpus) {
    int i;
    for (i = 0; i < n; i++) cpus[i] = -1;
#pragma omp parallel num_threads(n)
    cpus[omp_get_thread_num()] = sched_getcpu();
}

/* the first processor of the core of a processor; the processor itself if the core is unknown */
static int ox_core(int cpu) {
    static int known[CPU_SETSIZE]; /* first processor + 1, 0: not read yet; racing threads store the same */
    char path[96];
    FILE *file;
    int first = cpu, before;
    if (cpu < 0 || cpu >= CPU_SETSIZE) return cpu;
    before = __atomic_load_n(&known[cpu], __ATOMIC_RELAXED);
    if (before) return before - 1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    file = fopen(path, "re");
    if (file) {
        if (fscanf(file, "%d", &first) != 1) first = cpu;
        fclose(file);
    }
    __atomic_store_n(&known[cpu], first + 1, __ATOMIC_RELAXED);
    return first;
}

/* a permitted processor that runs none of the n threads, on a core without any of them if possible; or -1 */
static int ox_free_cpu(const cpu_set_t *may, int n, const int *cpus) {
    int cpu, i, second = -1;
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int taken = 0, shared = 0;
        if (!CPU_ISSET(cpu, may)) continue;
        for (i = 0; i < n && !taken; i++) {
            taken = cpus[i] == cpu;
            shared |= ox_core(cpus[i]) == ox_core(cpu);
        }
        if (taken) continue;
        if (!shared) return cpu;
        if (second < 0) second = cpu;
    }
    return second;
}

/* Moves threads that share a processor to free ones. Each thread moves itself, since a sleeping thread would wake
   up on its old processor. Its mask is restored at once: it stays until the system moves it. cpus has room for 2 n. */
static int ox_spread(int n, int *cpus) {
    cpu_set_t may;
    int i, j, wanted = 0, moved = 0, *to = cpus + n;
    ox_team(n, cpus);
    for (i = 0; i < n; i++) to[i] = -1;
    for (i = 1; i < n; i++) {
        for (j = 0; j < i && cpus[j] != cpus[i];) j++;
        if (j == i || cpus[i] < 0) continue;
        if (!wanted && sched_getaffinity(0, sizeof may, &may)) return 0;
        to[i] = ox_free_cpu(&may, n, cpus);
        if (to[i] < 0) break;
        cpus[i] = to[i];
        wanted++;
    }
    if (!wanted) return 0;
#pragma omp parallel num_threads(n) reduction(+ : moved)
    {
        cpu_set_t mine, only;
        int cpu = to[omp_get_thread_num()];
        if (cpu >= 0 && !sched_getaffinity(0, sizeof mine, &mine) && CPU_ISSET(cpu, &mine)) {
            CPU_ZERO(&only);
            CPU_SET(cpu, &only);
            if (!sched_setaffinity(0, sizeof only, &only)) {
                sched_setaffinity(0, sizeof mine, &mine);
                moved++;
            }
        }
    }
    return moved;
}
#else
static void ox_team(int n, int *cpus) {
    while (n--) cpus[n] = -1;
}
static int ox_spread(int n, int *cpus) {
    (void)n;
    (void)cpus;
    return 0;
}
#endif

#include <errno.h>
#include <stddef.h>
#ifdef __linux__
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { OX_NODE_BITS = 1024 }; /* more than Linux has */

/* Asks for the whole pages of some memory to lie in a node, as far as it has room, or in several nodes in turn, also
   those pages that were touched before. Returns 0, or the system's error. */
static int ox_place(char *memory, size_t n_bytes, const int *nodes, int n_nodes) {
#if defined(__linux__) && defined(SYS_mbind)
    enum { PREFERRED = 1, INTERLEAVE = 3, MOVE = 2, BITS = 8 * sizeof(long) }; /* of linux/mempolicy.h */
    unsigned long mask[OX_NODE_BITS / BITS] = {0};
    uintptr_t page = sysconf(_SC_PAGESIZE), first, last;
    int i;
    for (i = 0; i < n_nodes; i++) mask[nodes[i] / BITS] |= 1ul << nodes[i] % BITS;
    first = ((uintptr_t)memory + page - 1) / page * page;
    last = ((uintptr_t)memory + n_bytes) / page * page;
    if (first >= last) return 0;
    /* the kernel takes one bit less than it is told */
    return syscall(SYS_mbind, first, last - first, n_nodes > 1 ? INTERLEAVE : PREFERRED, mask, OX_NODE_BITS + 1l, MOVE)
               ? errno
               : 0;
#else
    (void)memory, (void)n_bytes, (void)nodes, (void)n_nodes;
    return ENOSYS;
#endif
}

#endif
