/* NUMA nodes: which processors belong to each, threads that bind themselves to them, and their counters. */
#ifndef OX_NODES_H
#define OX_NODES_H

enum { OX_MAX_NODES = 64 };

#if defined(_OPENMP) && defined(__linux__)
#include <sched.h>

enum { OX_NODE_CPUS = CPU_SETSIZE };
static int ox_nodes = 1, ox_node_threads = 1;
static int ox_nodes_use; /* counts changes, so that each thread binds itself once after each */
static cpu_set_t ox_node_cpus[OX_MAX_NODES];
static __thread int ox_bound_use, ox_bound_node;

/* node_of[i] = the node of processor i, or -1 */
static void ox_use_nodes(int nodes, const int *node_of, int n_cpus, int n_threads) {
    int cpu;
    ox_nodes = 1;
    for (cpu = 0; cpu < nodes; cpu++) CPU_ZERO(&ox_node_cpus[cpu]);
    for (cpu = 0; cpu < n_cpus; cpu++)
        if (node_of[cpu] >= 0) CPU_SET(cpu, &ox_node_cpus[node_of[cpu]]);
    ox_node_threads = n_threads;
    ox_nodes_use++;
    ox_nodes = nodes;
}

/* The node of thread t of a team, one of so many, to whose processors the calling thread is bound from now on. A
   refused binding costs speed alone: some of the processors may have been taken from the process. */
static int ox_enter_node(int t, int nodes) {
    long node = (long)t * nodes / ox_node_threads;
    if (node >= nodes) node = nodes - 1; /* another engine has more threads */
    if (ox_bound_use != ox_nodes_use || ox_bound_node != node) {
        sched_setaffinity(0, sizeof ox_node_cpus[node], &ox_node_cpus[node]);
        ox_bound_use = ox_nodes_use;
        ox_bound_node = (int)node;
    }
    return (int)node;
}

/* adds n, and returns what was there before */
static long long ox_add(long long *counter, long long n) {
    return n ? __atomic_fetch_add(counter, n, __ATOMIC_RELAXED) : __atomic_load_n(counter, __ATOMIC_RELAXED);
}
#else /* one node */
enum { OX_NODE_CPUS = 0 };
static const int ox_nodes = 1, ox_node_threads = 1;
static void ox_use_nodes(int nodes, const int *node_of, int n_cpus, int n_threads) {
    (void)nodes, (void)node_of, (void)n_cpus, (void)n_threads;
}
static int ox_enter_node(int t, int nodes) {
    (void)t, (void)nodes;
    return 0;
}
static long long ox_add(long long *counter, long long n) { return (*counter += n) - n; }
#endif

#endif
