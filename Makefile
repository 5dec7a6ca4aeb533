# redraft: one file a person can read in one sitting.
#
#   make            build the programs into build/release/bin
#   make deps       install what is missing by package name (root: apt; Python venv in the cache folder)
#   make demo       serve a real model, stream, learn, switch, roll back (MINUTES=8, BROKER=mock|kafka, FROM=base|scratch)
#   make check      every test tier, the README's test command
#   make unit       unit and reference tests (V=release|asan|double)
#   make system     real programs against a real Kafka
#   make lint       formatting, include direction, cppcheck
#   make fuzz       libFuzzer on every parser (SECONDS_EACH=60)
#   make install    programs, units, manual, completions, examples (DESTDIR=, PREFIX=/usr/local, SYSCONFDIR=/etc)
#   make deb        build/redraft_VERSION_ARCH.deb
#   make bench      speed as ratios against peers and limits; build/bench.jsonl, .svg (CELLS="capture_cost memory" for some)
#   make soak       32 clients, hang-ups, switches, a broker that comes and goes: nothing leaks, nothing changes (MINUTES=30)
#   make cuda       build/release/lib/redraft/redraft-cuda.so, with an installed CUDA toolkit or one fetched as wheels (640 MB, once)
#   make check-gpu  the kernels', trainer's and engine's tests on a real GPU; says why not where there is none
#   make bench-gpu  decode, training, capture and switches on a real GPU against its limits and torch's; says why not where there is none
#   make bench-adapt  a stream of changing domains: what is followed, what is kept (hours; QUICK=1 minutes)
#   make sims       how well the daemon judges, in simulation: gate, canary, drift (RUNS=40 WEEKS=2 SEED=1; the README's are 200, 400 and 20)
#   make faults     a server with faults that can be switched on (serve/fault.h): build/release/faults/bin/redraft-serve
#   make V=asan     the same under AddressSanitizer and UBSan, into build/asan
#   make help       this list
SHELL  := /bin/bash
V      ?= release
B      := build/$(V)
CC     := gcc
CACHE  ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/redraft
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)

WARN    := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror
OPT.release := -O2 -g
OPT.asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT.double  := -O2 -g -DREDRAFT_DOUBLE
OPT.gpu     := -O2 -g
CFLAGS  := -std=gnu11 $(WARN) $(OPT.$(V)) -I. -MMD -MP -pthread -fno-math-errno -fvisibility=hidden -D_GNU_SOURCE -DREDRAFT_COMMIT='"$(COMMIT)"'
LDFLAGS := $(filter -fsanitize%,$(OPT.$(V))) -pthread
LIBS    := -lrdkafka -levent -levent_pthreads -ljansson -lcrypto -lzstd -lm

# Rooms: every .c of a folder, except the programs' own main files.
srcs     = $(filter-out $(MAINS),$(wildcard $(1)/*.c))
MAINS   := serve/redraft-serve.c learn/redraft-learn.c daemon/redraftd.c kernels/comm_mpi.c
BASE    := $(call srcs,daemon/base)
KERNELS := $(call srcs,kernels) $(call srcs,kernels/cpu) $(call srcs,kernels/model)
SCHEMAS := $(call srcs,schemas)
SERVE   := $(call srcs,serve)
LEARN   := $(call srcs,learn)
DAEMON  := $(call srcs,daemon) $(call srcs,daemon/engine)
CTL     := $(wildcard daemon/ctl/*.c)
obj      = $(patsubst %.c,$(B)/%.o,$(1))

# The compute files alone may contract a*b+c and use wider vectors; never fast-math.
$(B)/kernels/%.o: CFLAGS += -O3 -ffp-contract=fast
$(B)/kernels/cpu/draw.o: CFLAGS += -ffp-contract=off
$(B)/kernels/cpu/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
$(B)/kernels/cpu/%_avx512.o $(B)/kernels/cpu/%_bf16.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mavx2
$(B)/kernels/cpu/%_bf16.o: CFLAGS += -mavx512bf16

PROGS := redraft-serve redraft-learn redraftd redraftctl redraft-mock-broker
# Ranks over MPI, where it is installed: an object of its own, which the learner loads when mpirun started it.
MPI := $(shell pkg-config --exists ompi-c 2>/dev/null && echo $(B)/lib/redraft/redraft-mpi.so)
all: $(PROGS:%=$(B)/bin/%) $(MPI)

$(B)/bin/redraft-serve: $(call obj,serve/redraft-serve.c $(SERVE) $(KERNELS) $(SCHEMAS) $(BASE))
$(B)/bin/redraft-learn: $(call obj,learn/redraft-learn.c $(LEARN) $(KERNELS) $(SCHEMAS) $(BASE))
$(B)/bin/redraftd:      $(call obj,daemon/redraftd.c $(DAEMON) $(SCHEMAS) $(BASE))
$(B)/bin/redraftctl:    $(call obj,$(CTL) $(SCHEMAS) $(BASE))
$(B)/bin/redraft-mock-broker: $(call obj,deploy/demo/mock-broker.c $(BASE))
# The server once more, of the same objects but for those that know of injected faults.
FAULTY := $(shell grep -l '"serve/fault.h"' serve/*.c)
faults: $(B)/faults/bin/redraft-serve
$(B)/faults/bin/redraft-serve: $(FAULTY:%.c=$(B)/faults/%.o) $(filter-out $(call obj,$(FAULTY)),$(call obj,serve/redraft-serve.c $(SERVE) $(KERNELS) $(SCHEMAS) $(BASE)))
$(B)/faults/bin/redraft-serve: LDFLAGS += -Wl,-rpath,'$$ORIGIN/../../lib/redraft'
$(B)/faults/bin/%:
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)
$(B)/faults/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DREDRAFT_FAULTS -c -o $@ $<

# Where the kernels of a GPU lie.
$(B)/bin/redraft-serve $(B)/bin/redraft-learn: LDFLAGS += -Wl,-rpath,'$$ORIGIN/../lib/redraft'
$(B)/bin/%:
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)

$(B)/lib/redraft/redraft-mpi.so: kernels/comm_mpi.c kernels/comm.h
	@mkdir -p $(@D)
	$(CC) $(filter-out -M%,$(CFLAGS)) -fPIC -shared $$(pkg-config --cflags ompi-c | sed 's/-I/-isystem /g') -o $@ $< $$(pkg-config --libs ompi-c)

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

# A varlink IDL becomes a C string that the programs answer introspection with.
$(B)/schemas/idl.h: $(wildcard schemas/admin/*.varlink)
	@mkdir -p $(@D)
	for f in $^; do n=$$(basename $$f .varlink); echo "static const char idl_$${n//./_}[] ="; \
	  sed 's/\\/\\\\/g; s/"/\\"/g; s/^/  "/; s/$$/\\n"/' $$f; echo ';'; done > $@
# So does each file of the daemon's page: page.html is page_html.
$(B)/daemon/page.h: $(wildcard daemon/page/*)
	@mkdir -p $(@D)
	for f in $^; do n=$${f##*/}; echo "static const char $${n//./_}[] ="; \
	  sed 's/\\/\\\\/g; s/"/\\"/g; s/^/  "/; s/$$/\\n"/' $$f; echo ';'; done > $@
$(B)/daemon/web.o: $(B)/daemon/page.h
$(B)/serve/redraft-serve.o $(B)/serve/control.o $(B)/learn/redraft-learn.o $(B)/learn/control.o $(B)/daemon/redraftd.o $(B)/daemon/admin.o: $(B)/schemas/idl.h
$(B)/serve/%.o $(B)/learn/%.o $(B)/daemon/%.o: CFLAGS += -I$(B)

# CUDA: one library of kernels/cuda, loaded at run time where a driver answers. The same sources also become one that runs on a
# CPU (tests/cuemu), which is what the tests load, with stand-ins for the driver, cuBLAS and NCCL beside it.
ifeq ($(origin CUDA_HOME),undefined) # looked for once, when it is first named
CUDA_HOME   = $(eval CUDA_HOME := $(or $(patsubst %/bin/nvcc,%,$(firstword $(wildcard /usr/local/cuda/bin/nvcc))),$(shell deploy/install-deps --cuda)))$(CUDA_HOME)
endif
CUDA_ARCHS ?= 80 90 100
CUDA_SRC   := $(wildcard kernels/cuda/*.c kernels/cuda/*.cu)
CUDA_OBJ    = $(patsubst kernels/cuda/%,$(1)/%.o,$(CUDA_SRC))
NVCC        = $(CUDA_HOME)/bin/nvcc -ccbin g++ -O3 -std=c++17 -I. $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	      -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS)) -Werror all-warnings -Xptxas -Werror,-warn-spills \
	      -Xcompiler -Wall,-Wextra,-Werror,-fPIC,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden -MD
CUDA_SO    := $(B)/lib/redraft/redraft-cuda.so
cuda: $(CUDA_SO)
$(CUDA_HOME)/bin/nvcc:
	deploy/install-deps build cuda
$(B)/cuda/%.cu.o: kernels/cuda/%.cu | $(CUDA_HOME)/bin/nvcc
	@mkdir -p $(@D)
	$(NVCC) -MF $(@:.o=.d) -c -o $@ $<
$(B)/cuda/%.c.o: kernels/cuda/%.c | $(CUDA_HOME)/bin/nvcc
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -isystem $(CUDA_HOME)/include -c -o $@ $<
$(CUDA_SO): $(call CUDA_OBJ,$(B)/cuda)
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $^ -Wl,-z,defs -Wl,--exclude-libs,ALL -L$(CUDA_HOME)/lib64 -lcudart_static -lpthread -ldl -lrt -lm

EMU      := $(if $(filter double gpu,$(V)),,$(addprefix $(B)/cuemu/,redraft-cuda.so libcublas.so.13 libnccl.so.2 libcuda.so.1))
EMUFLAGS := $(OPT.$(V)) -O3 -Wall -Wextra -Werror -I. -isystem tests/cuemu/include -MMD -MP -pthread -fPIC
$(B)/cuemu/draw.cu.o: EMUFLAGS += -ffp-contract=off
EMULINK   = $(CC) -shared $(LDFLAGS) -o $@ $(filter %.o %.so,$^) -Wl,-rpath,'$$ORIGIN' -Wl,-soname,$(@F) -lstdc++ -lm
$(B)/cuemu/%.cu.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(CXX) -std=gnu++17 $(EMUFLAGS) -fvisibility=hidden -include tests/cuemu/cuemu.h -x c++ -c -o $@ $<
$(B)/cuemu/%.c.o: kernels/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -isystem tests/cuemu/include -c -o $@ $<
$(B)/cuemu/%.o: tests/cuemu/%.cpp
	@mkdir -p $(@D)
	$(CXX) -std=gnu++17 $(EMUFLAGS) -c -o $@ $<
$(B)/cuemu/%.o: tests/cuemu/%.c
	@mkdir -p $(@D)
	$(CC) $(EMUFLAGS) -c -o $@ $<
$(B)/cuemu/libcuemu.so: $(B)/cuemu/fibers.o $(B)/cuemu/graphs.o $(B)/cuemu/runtime.o
	$(EMULINK)
$(B)/cuemu/libcublas.so.13: $(B)/cuemu/blas.o $(B)/cuemu/libcuemu.so
	$(EMULINK)
$(B)/cuemu/libnccl.so.2: $(B)/cuemu/nccl.o $(B)/cuemu/libcuemu.so
	$(EMULINK)
$(B)/cuemu/libcuda.so.1: $(B)/cuemu/driver.o
	$(EMULINK)
$(B)/cuemu/redraft-cuda.so: $(call CUDA_OBJ,$(B)/cuemu) $(B)/cuemu/libcuemu.so
	$(EMULINK)

# Unit tests: tests/unit/<room>/test_x.c, one binary a source file, cmocka.
# The double build is for the arithmetic: only these rooms' tests say something there.
UNIT_SRC := $(foreach r,$(if $(filter double,$(V)),kernels learn,*),$(wildcard tests/unit/$(r)/test_*.c))
UNIT_BIN := $(patsubst tests/unit/%.c,$(B)/tests/%,$(UNIT_SRC))
ROOMS.base    := $(BASE)
ROOMS.schemas := $(SCHEMAS) $(BASE)
ROOMS.kernels := $(KERNELS) $(BASE)
ROOMS.serve   := $(SERVE) $(KERNELS) $(SCHEMAS) $(BASE)
ROOMS.learn   := $(LEARN) $(KERNELS) $(SCHEMAS) $(BASE)
ROOMS.daemon  := $(DAEMON) $(SCHEMAS) $(BASE)
LOAD          := $(filter-out tests/bench/load/load.c,$(wildcard tests/bench/load/*.c))
ROOMS.load    := $(LOAD) $(BASE)
ROOMS.cross   := $(SERVE) $(LEARN) $(KERNELS) $(SCHEMAS) $(BASE)
# (An old-style run path: a sanitizer's dlopen is called from its own library, which a new-style one of ours would not reach.)
define room_tests
$(B)/tests/$(1)/%: $(B)/tests/unit/$(1)/%.o $$(call obj,$$(ROOMS.$(1)))
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) -Wl,--disable-new-dtags,-rpath,'$$$$ORIGIN/../../$(if $(filter gpu,$(V)),lib/redraft,cuemu)' -o $$@ $$(filter %.o,$$^) $(LIBS) -lcmocka
endef
$(foreach r,base schemas kernels serve learn daemon load cross,$(eval $(call room_tests,$(r))))
ifeq ($(V),release) # it starts the real program
$(B)/tests/learn/test_ranks: | $(B)/bin/redraft-learn $(MPI) $(EMU)
endif
$(filter $(B)/tests/kernels/% $(B)/tests/cross/%,$(UNIT_BIN)) $(B)/tests/learn/test_seqpar: | $(EMU)
# Benches below the programs: build/release/bench/bench_<name>
$(B)/bench/bench_kernels: $(B)/tests/bench/bench_kernels.o $(call obj,$(KERNELS) $(BASE))
$(B)/bench/bench_gpu: $(B)/tests/bench/bench_gpu.o $(call obj,$(KERNELS) $(BASE))
$(B)/bench/bench_gpu_serve: $(B)/tests/bench/bench_gpu_serve.o $(call obj,$(ROOMS.serve))
$(B)/bench/bench_gpu $(B)/bench/bench_gpu_serve $(B)/bench/bench_ranks: LDFLAGS += -Wl,-rpath,'$$ORIGIN/../lib/redraft'
$(B)/bench/bench_tap: $(B)/tests/bench/bench_tap.o $(call obj,$(ROOMS.serve))
$(B)/bench/bench_payload: $(B)/tests/bench/bench_payload.o $(call obj,$(SCHEMAS) $(BASE))
$(B)/bench/bench_decode $(B)/bench/bench_ttt: $(B)/bench/bench_%: $(B)/tests/bench/bench_%.o $(call obj,$(ROOMS.cross))
$(B)/bench/bench_ranks: $(B)/tests/bench/bench_ranks.o $(call obj,$(ROOMS.learn)) | $(MPI)
# The daemon's judgement in simulation: build/release/bench/{drift,gate,canary}_sim (figures in daemon/README.md)
SIMS := drift_sim gate_sim canary_sim
$(SIMS:%=$(B)/bench/%): $(B)/bench/%: $(B)/tests/bench/%.o $(call obj,$(ROOMS.daemon))
sims: $(SIMS:%=$(B)/bench/%)
	$(B)/bench/gate_sim $(or $(RUNS),40) $(or $(SEED),1)
	@echo
	$(B)/bench/canary_sim $(or $(RUNS),40) $(or $(SEED),1)
	@echo
	$(B)/bench/drift_sim $(or $(WEEKS),2) $(or $(SEED),1)
# The load generator: build/release/bench/load
$(B)/bench/load: $(call obj,tests/bench/load/load.c $(ROOMS.load))
$(B)/bench/%:
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS)
.PRECIOUS: $(B)/%.o
unit-bins: $(UNIT_BIN)
unit-list:
	@echo $(UNIT_BIN)
unit: unit-bins
	tests/run-unit $(V) $(UNIT_BIN)

check-gpu:
	tests/gpu/check-gpu || [ $$? -eq 77 ]
bench-gpu:
	tests/gpu/bench-gpu || [ $$? -eq 77 ]
deps:
	deploy/install-deps
demo:
	deploy/install-deps build demo
	@echo "building into $(B)"
	@$(MAKE) -s --no-print-directory -j$$(nproc) all
	deploy/demo/run --bin $(B)/bin --minutes $(or $(MINUTES),8) --broker $(or $(BROKER),mock) --from $(or $(FROM),auto)
check:
	tests/check
system: all
	tests/run-system
lint:
	tests/lint
fuzz:
	tests/fuzz/run $(or $(SECONDS_EACH),60)
BENCHES := bench_kernels bench_decode bench_ttt bench_tap bench_ranks bench_payload load
bench: all $(BENCHES:%=$(B)/bench/%)
	tests/bench/run $(CELLS)
soak: all
	tests/soak/run --minutes $(or $(MINUTES),30)
bench-adapt: all
	deploy/install-deps demo bench
	tests/bench/adapt.py

# What the package holds. The settings' files are written from the programs' own tables and never over yours.
PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR    ?= $(if $(filter /usr,$(PREFIX)),/lib/systemd/system,$(SYSCONFDIR)/systemd/system)
VERSION    ?= 0.1.$(shell git rev-list --count HEAD 2>/dev/null || echo 0)
D          := $(DESTDIR)
docs: all
	deploy/docs $(B)/bin $(B)/share
install: docs
	install -d $(D)$(PREFIX)/bin $(D)$(PREFIX)/libexec/redraft $(D)$(SYSCONFDIR)/redraft $(D)$(UNITDIR) $(D)$(PREFIX)/lib/sysusers.d $(D)$(PREFIX)/lib/tmpfiles.d
	install -d $(D)$(PREFIX)/share/man/man{1,5,8} $(D)$(PREFIX)/share/{bash-completion/completions,zsh/vendor-completions} $(D)$(PREFIX)/share/doc/redraft/examples
	install -s $(PROGS:%=$(B)/bin/%) $(D)$(PREFIX)/bin
	mv $(D)$(PREFIX)/bin/redraft-mock-broker $(D)$(PREFIX)/libexec/redraft/
	install -d $(D)$(PREFIX)/lib/redraft
	for f in $(CUDA_SO) $(MPI); do [ ! -e $$f ] || install -s -m 644 $$f $(D)$(PREFIX)/lib/redraft/ || exit 1; done
	for f in deploy/systemd/*; do sed 's,@bindir@,$(PREFIX)/bin,; s,@sysconfdir@,$(SYSCONFDIR),' $$f | install -m 644 /dev/stdin $(D)$(UNITDIR)/$${f##*/} || exit 1; done
	install -m 644 deploy/sysusers.d/redraft.conf $(D)$(PREFIX)/lib/sysusers.d/
	install -m 644 deploy/tmpfiles.d/redraft.conf $(D)$(PREFIX)/lib/tmpfiles.d/
	for f in serve learn redraftd; do [ -e $(D)$(SYSCONFDIR)/redraft/$$f.conf ] || install -m 644 $(B)/share/etc/$$f.conf $(D)$(SYSCONFDIR)/redraft/ || exit 1; done
	for s in 1 5 8; do install -m 644 $(B)/share/man/*.$$s $(D)$(PREFIX)/share/man/man$$s/ || exit 1; done
	install -m 644 $(B)/share/bash/* $(D)$(PREFIX)/share/bash-completion/completions/
	install -m 644 $(B)/share/zsh/* $(D)$(PREFIX)/share/zsh/vendor-completions/
	install -m 644 README.md LICENSE $(D)$(PREFIX)/share/doc/redraft/
	install -m 644 deploy/examples/* $(D)$(PREFIX)/share/doc/redraft/examples/
	install -d $(D)$(PREFIX)/share/doc/redraft/{runbooks,prometheus,grafana}
	install -m 644 deploy/runbooks/*.md $(D)$(PREFIX)/share/doc/redraft/runbooks/
	install -m 644 deploy/prometheus/* $(D)$(PREFIX)/share/doc/redraft/prometheus/
	install -m 644 deploy/grafana/* $(D)$(PREFIX)/share/doc/redraft/grafana/
deb: all
	deploy/deb/build $(VERSION) $(B) build
help:
	@sed -n 's/^#   //p' Makefile
clean:
	rm -rf build
.PHONY: all faults sims cuda check-gpu bench-gpu docs install deb unit unit-bins unit-list deps demo check system lint fuzz bench bench-adapt soak help clean
.DEFAULT_GOAL := all
-include $(shell test -d $(B) && find $(B) -name '*.d')
