/* Executes the AMX instructions of simd/amx.h on a processor without them: preloaded into a process, it handles the
 * signal of an illegal instruction, reads the instruction's operands and does what Intel's manual says. Other uses of
 * the instructions than amx.h's (registers 0 to 3 of 16 rows of 64 bytes, 4 and 5 of 16 rows of 64 or 32 bytes, 6 and 7
 * of a quarter as many rows of 64 bytes, configured before their use) end the process.
 * At the end it prints how many instructions it executed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static __thread struct {
    int columns; /* of A; 0: not configured */
    union { uint8_t bytes[1024]; uint32_t sums[256]; } tile[8];
} state;
static long n_executed;
static const int REGISTERS[16] = { /* in the order of their numbers in instructions */
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static void expect(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "tile instruction: expected %s\n", what);
    abort();
}

static void configure(const uint8_t *p) {
    const int columns = p[24];
    uint8_t wanted[64] = {1};
    for (int i = 0; i < 8; i++)
        wanted[16 + 2 * i] = i == 4 || i == 5 ? columns : 64, wanted[48 + i] = i < 6 ? 16 : columns / 4;
    expect(columns == 64 || columns == 32, "64 or 32 columns");
    expect(!state.columns || state.columns != columns, "a release before the same configuration");
    expect(!memcmp(p, wanted, 64), "palette 1, the rows and bytes of amx.h, and zeros");
    memset(&state, 0, sizeof state);
    state.columns = columns;
}

static void dot(uint32_t *c, const uint8_t *a, const uint8_t *b, int is_signed) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < state.columns; k++) {
                const int x = is_signed ? (int8_t)a[64 * m + k] : a[64 * m + k];
                c[16 * m + n] += (uint32_t)(x * (int8_t)b[64 * (k / 4) + 4 * n + k % 4]);
            }
}

/* VEX with three bytes: c4, ~R ~X ~B and the map, ~vvvv and the prefix pp, opcode, mod reg rm. */
static void on_illegal_instruction(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint8_t *p = (uint8_t *)registers[REG_RIP];
    if (p[0] != 0xc4 || (p[1] & 31) != 2 || (p[3] != 0x49 && p[3] != 0x4b && p[3] != 0x5e)) {
        signal(number, SIG_DFL); /* it is raised again */
        return;
    }
    (void)info;
    const int x = ~p[1] >> 6 & 1, b = ~p[1] >> 5 & 1, third = ~p[2] >> 3 & 15, prefix = p[2] & 3, opcode = p[3];
    const int mod = p[4] >> 6, reg = p[4] >> 3 & 7, rm = p[4] & 7;
    uint64_t base = 0, stride = 0;
    p += 5;
    if (mod != 3) {
        int from = rm;
        if (rm == 4) {
            const int index = (*p >> 3 & 7) | x << 3;
            from = *p & 7;
            if (index != 4) stride = (uint64_t)registers[REGISTERS[index]] << (*p >> 6);
            p++;
        }
        expect(mod || from != 5, "a register as the base of an address");
        base = (uint64_t)registers[REGISTERS[from | b << 3]];
        if (mod == 1) base += (uint64_t)(int64_t)(int8_t)*p++;
        if (mod == 2) {
            int32_t displacement;
            memcpy(&displacement, p, 4);
            base += (uint64_t)(int64_t)displacement;
            p += 4;
        }
    }
    if (opcode == 0x49 && prefix == 0) {
        if (mod == 3) state.columns = 0; /* tilerelease */
        else configure((const uint8_t *)base); /* ldtilecfg */
    } else {
        uint8_t *tile = state.tile[reg].bytes;
        expect(state.columns, "a configuration before the first use of a register");
        if (opcode == 0x49 && prefix == 3 && mod == 3) memset(tile, 0, 1024); /* tilezero */
        else if (opcode == 0x4b && prefix == 3) /* tileloadd */
            for (int row = 0; row < (reg < 6 ? 16 : state.columns / 4); row++)
                memcpy(tile + 64 * row, (uint8_t *)(base + row * stride), reg == 4 || reg == 5 ? state.columns : 64);
        else if (opcode == 0x4b && prefix == 2) /* tilestored */
            for (int row = 0; row < 16; row++) memcpy((uint8_t *)(base + row * stride), tile + 64 * row, 64);
        else if (opcode == 0x5e && (prefix == 1 || prefix == 3)) /* tdpbusd, tdpbssd */
            dot(state.tile[reg].sums, state.tile[rm].bytes, state.tile[third & 7].bytes, prefix == 3);
        else expect(0, "an instruction of amx.h");
    }
    __atomic_add_fetch(&n_executed, 1, __ATOMIC_RELAXED);
    registers[REG_RIP] = (greg_t)p;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, NULL);
}

__attribute__((destructor)) static void end(void) {
    if (n_executed) fprintf(stderr, "tile instructions: %ld\n", n_executed);
}
