/* One grid on one OS thread: fibers, barriers, warps (tests/cuemu/cuemu.h). */
#include "tests/cuemu/runtime.h"
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace cuemu {
uint3 tid, bid;
dim3 bdim, gdim;
float *dynamic;
unsigned lane;

enum wait { READY, AT_BLOCK, AT_WARP, DONE };

struct fiber {
	void *sp;
	char *stack; /* NULL: not begun */
	enum wait wait;
};

struct warp {
	uint64_t slot[2][32];
	unsigned phase, arrived, done;
};

static const size_t STACK = 64 << 10;

static struct {
	const char *kernel;
	const std::function<void()> *body;
	std::vector<fiber> f;
	std::vector<warp> w;
	std::vector<char *> stacks; /* free ones */
	unsigned n, now, barred, done, count, counted;
	void *scheduler;
} b;
static struct stack_owner {
	~stack_owner()
	{
		for (char *s : b.stacks)
			free(s);
	}
} owner; /* made after b, so gone before it */
static std::recursive_mutex one_grid;

[[noreturn]] static void die(const char *what)
{
	fprintf(stderr, "cuemu: %s: %s (block %u,%u,%u thread %u)\n", b.kernel, what, bid.x, bid.y, bid.z, b.now);
	abort();
}

/* Save where we are on this stack, go on from another. Only what the ABI asks a callee to keep. */
extern "C" void cuemu_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(".text\n.globl cuemu_switch\n.type cuemu_switch,@function\ncuemu_switch:\n"
	"push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
	"mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
	"pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
	".size cuemu_switch,.-cuemu_switch\n");
static void *fresh(char *stack, void (*entry)())
{
	void **sp = (void **)(stack + STACK - 16);
	*--sp = nullptr;
	*--sp = (void *)entry;
	for (int i = 0; i < 6; i++)
		*--sp = nullptr;
	return sp;
}
#elif defined(__aarch64__)
__asm__(".text\n.globl cuemu_switch\n.type cuemu_switch,%function\ncuemu_switch:\n"
	"sub sp,sp,#160\n stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n"
	"stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n"
	"mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
	"ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n"
	"ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp,sp,#160\n ret\n");
static void *fresh(char *stack, void (*entry)())
{
	void **sp = (void **)(stack + STACK - 176);
	memset(sp, 0, 160);
	sp[11] = (void *)entry;
	return sp;
}
#else
#error "tests/cuemu knows how to switch stacks on x86-64 and aarch64 only"
#endif

static void wait_as(enum wait how)
{
	b.f[b.now].wait = how;
	cuemu_switch(&b.f[b.now].sp, b.scheduler);
}

static void entry()
{
	(*b.body)();
	wait_as(DONE);
	die("a finished thread went on");
}

static void run_fiber(unsigned i)
{
	fiber &f = b.f[i];
	b.now = i;
	lane = i % 32;
	tid.x = i % bdim.x;
	tid.y = i / bdim.x % bdim.y;
	tid.z = i / (bdim.x * bdim.y);
	if (!f.stack) {
		if (b.stacks.empty())
			b.stacks.push_back((char *)aligned_alloc(64, STACK));
		f.stack = b.stacks.back();
		b.stacks.pop_back();
		f.sp = fresh(f.stack, entry);
	}
	cuemu_switch(&b.scheduler, f.sp);
	if (f.wait == DONE) {
		b.stacks.push_back(f.stack);
		b.done++;
		b.w[i / 32].done++;
	}
}

/* A warp until all its threads are done or at a block barrier */
static bool run_warp(unsigned wi, bool backwards)
{
	warp &w = b.w[wi];
	bool ran = false;
	for (;;) {
		for (unsigned j = 0; j < 32; j++) {
			unsigned i = wi * 32 + (backwards ? 31 - j : j);
			if (b.f[i].wait == READY) {
				run_fiber(i);
				ran = true;
			}
		}
		if (!w.arrived)
			return ran;
		if (w.arrived < 32)
			die(w.done ? "a warp call after lanes of it had returned" : "a warp call that not all lanes make");
		w.arrived = 0;
		w.phase ^= 1;
		for (unsigned j = 0; j < 32; j++)
			b.f[wi * 32 + j].wait = READY;
	}
}

static void run_block(bool backwards)
{
	b.barred = b.done = b.count = 0;
	for (auto &f : b.f)
		f = fiber{};
	for (auto &w : b.w)
		w = warp{};
	while (b.done < b.n) {
		bool ran = false;
		unsigned warps = b.n / 32;
		for (unsigned i = 0; i < warps; i++)
			ran |= run_warp(backwards ? warps - 1 - i : i, backwards);
		if (b.barred) {
			if (b.barred < b.n)
				die("a barrier that not all threads of the block reach");
			b.barred = 0;
			b.counted = b.count;
			b.count = 0;
			for (auto &f : b.f)
				f.wait = READY;
		} else if (!ran) {
			die("no thread can go on");
		}
	}
}

void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared, const std::function<void()> &body)
{
	std::lock_guard<std::recursive_mutex> lock(one_grid);
	std::vector<uint32_t> mem(shared / 4 + 1 + 32); /* from 128 bytes on: what a tile of tensor cores needs */
	b.kernel = kernel;
	b.body = &body;
	b.n = block.x * block.y * block.z;
	if (b.n % 32 || b.n > 1024 || !b.n)
		die("a block that is no multiple of 32 threads up to 1024");
	b.f.resize(b.n);
	b.w.resize(b.n / 32);
	bdim = block;
	gdim = grid;
	unsigned nth = 0;
	for (bid.z = 0; bid.z < grid.z; bid.z++)
		for (bid.y = 0; bid.y < grid.y; bid.y++)
			for (bid.x = 0; bid.x < grid.x; bid.x++) {
				for (auto &x : mem)
					x = 0x7fffffff;
				dynamic = (float *)(((uintptr_t)mem.data() + 127) / 128 * 128);
				run_block(nth++ % 2);
			}
}

void block_barrier()
{
	b.barred++;
	wait_as(AT_BLOCK);
}

int block_count(int p)
{
	b.count += p != 0;
	block_barrier();
	return (int)b.counted;
}

uint64_t exchange(unsigned mask, uint64_t mine, unsigned from)
{
	warp &w = b.w[b.now / 32];
	unsigned phase = w.phase;
	if (mask != 0xffffffffu)
		die("a warp call with a partial mask");
	w.slot[phase][lane] = mine;
	w.arrived++;
	wait_as(AT_WARP);
	return w.slot[phase][from];
}
} // namespace cuemu
