# nanospec: `make run` sets everything up, trains, and compares; `make test` proves it; `make help` lists the targets.
#
# Variables: T=tree (make test: only tests whose names begin so), V=1 (show the commands), ARCH=x86-64 (or any -march
# name; default: this machine), CXX=clang++, CXXFLAGS and LDFLAGS (added to the project's own), SANITIZE=1
# (AddressSanitizer and UBSan, in a folder of its own), GPU=1 (make cuda: build the tests too, for a device that is in
# another machine). All cores work, unless -j says how many.

ifeq ($(origin CXX),default)
CXX := g++
endif
ARCH ?= native
SANITIZE ?= 0
Q := $(if $(filter 1,$(V)),,@)

# ----------------------------------------------------------------------------------------------------------------
# Flags

# clang would warn of every loop that it could not vectorize, though it may have no reason to.
WARN := -Wall -Wextra$(if $(findstring clang,$(CXX)), -Wno-pass-failed)
# Up to a gigabyte g++ collects no garbage: that is a tenth of its time. JOBS counts a gigabyte for each.
MEMORY := $(if $(findstring clang,$(CXX)),,--param ggc-min-heapsize=1000000)
# Compilers prefer vectors of 256 bits where there are 512, for processors whose clock these once slowed.
VECTORS := $(shell echo | $(CXX) -march=$(ARCH) -dM -E -x c++ - 2>/dev/null | grep -q AVX512F && echo -mprefer-vector-width=512)
# Contraction off: a fused multiply-add is written as one, or the bits would depend on the compiler's mood.
# Includes are written from the top: "growth/shapes.h".
EXACT := -I. -ffp-contract=off -fno-math-errno -march=$(ARCH) $(VECTORS)
# What computes is optimized whole. What waits for it, or for a person, is not: it compiles in two thirds of the time.
ifeq ($(SANITIZE),1)
BUILD := build/sanitize
COMPUTES := -O1
WAITS := -O0
# Left out: what AddressSanitizer or a warning finds as well, for a fifth of the compiler's time; and in the tests' own
# files what only code of vectors, files and kernels does wrong, for a third of theirs.
SANITIZERS := -DSANITIZED -g1 -fsanitize=address,undefined -fno-sanitize=null,object-size,return,vptr -fno-sanitize-recover=all
TESTS_TRUSTED := -fno-sanitize=alignment,pointer-overflow
else
BUILD := build
COMPUTES := -O3
WAITS := -O1
endif
OPTIMIZE := $(COMPUTES)
O := $(BUILD)/objects
FLAGS = -std=c++17 $(OPTIMIZE) $(SANITIZERS) $(TRUSTED) $(EXACT) $(WARN) $(MEMORY) -pthread
LIBS := -lmd -lpcre2-8 -ledit

NVCC := $(shell command -v nvcc)
GPU := $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null | head -1))
# Kernels are compiled for the GPUs of this machine, where nvcc knows them; elsewhere, and by `make cuda`, for all from
# 8.0 on.
HERE := $(if $(filter cuda,$(MAKECMDGOALS)),,$(if $(GPU),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d .)))
KNOWN := $(if $(HERE),$(shell $(NVCC) --list-gpu-arch | awk -F_ '$$2 >= 80 {print $$2}'))
export CAPABILITIES ?= $(or $(sort $(filter $(KNOWN),$(HERE))),80 90)
NVCCFLAGS := -std=c++17 --fmad=false -x cu -Wno-deprecated-gpu-targets -Xptxas -v \
  $(foreach c,$(CAPABILITIES),-gencode arch=compute_$(c),code=[sm_$(c),compute_$(c)]) \
  -I. $(addprefix -Xcompiler ,$(filter-out -I.,$(EXACT)) $(WARN) $(MEMORY) -Wno-unknown-pragmas -pthread)
CUOBJDUMP := $(firstword $(shell command -v cuobjdump) $(wildcard build/venv/lib/python3*/site-packages/nvidia/*/bin/cuobjdump))

# As many compilers at a time as there are cores, and gigabytes of free memory; the command line's -j goes first.
JOBS := $(shell awk -v n=$$(nproc) '/MemAvailable/{m = int($$2 / 1048576)} END{print m < 1 ? 1 : m < n ? m : n}' /proc/meminfo)
# $(call build,TARGETS): makes them. A make that makes nothing counts the steps beforehand.
build = +@: >$(BUILD)/step; $(call alive,cat $(BUILD)/step,$(MAKE) $(if $(Q),-s) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) \
  STEPS=/$$($(MAKE) --no-print-directory -n STEPS=/ $(1) | grep -c '^echo " *[0-9]*/ ') $(1))
# $(call step,WORD): the line of a step, for instance "  12/31  CXX  build/nanospec.o".
step = $(eval DONE += x)@echo "  $(words $(DONE))$(STEPS)  $(1)  $@" | tee $(BUILD)/step
# $(call alive,WHERE,COMMAND): runs it. WHERE prints where it is, and when that has been the same for nine seconds, so
# does this, as long as its shell lives (a Ctrl-C does not reach what a shell has in the background).
alive = ( was=$$($(1)); while sleep 9 </dev/null >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do now=$$($(1)); \
  [ "$$now" != "$$was" ] || [ -z "$$now" ] || echo "$$now ..."; was=$$now; done ) & heart=$$!; $(2); status=$$?; kill $$heart 2>/dev/null; exit $$status

# Units: sources that one compiler reads in turn, because their headers are most of the work.
COMMAND_LINE := commands/cli.cpp commands/outputs.cpp
DRAFTING := files/drafter_names.cpp files/drafters.cpp growth/shapes.cpp drafters/logits.cpp
unit_command_line := $(COMMAND_LINE)
unit_commands := $(filter-out $(COMMAND_LINE),$(wildcard commands/*.cpp))
unit_drafting := $(DRAFTING)
unit_files := $(filter-out $(DRAFTING),$(wildcard files/*.cpp))
unit_experiments := $(wildcard study/experiments*.cpp)
unit_study := $(filter-out study/study.cpp study/roofline.cpp $(unit_experiments),$(wildcard study/*.cpp))
UNITS := command_line commands drafting files experiments study
in_units = $(1:%=$(O)/units/%.o)

FILES := $(O)/machine/sampling.o $(O)/machine/twins.o $(call in_units,drafting files)
LIBRARY := $(O)/machine/library.o $(FILES)
COMMANDS := $(call in_units,command_line commands)
STUDY := $(call in_units,command_line experiments study) $(O)/study/roofline.o
# What takes longest to compile comes first.
TO_RUN := $(BUILD)/train_gpt $(BUILD)/nanospec
PROGRAMS := $(BUILD)/train_drafter $(TO_RUN) $(BUILD)/study
ON_CUDA := $(BUILD)/nanospec-cuda $(BUILD)/train_gpt-cuda $(BUILD)/study-cuda

.PHONY: all programs study help deps data chat run test tests documents transcripts prove arm64 cuda single bench peers experiments clean format
all: ## the programs nanospec, train_gpt, train_drafter and study, into build/; with a GPU those of make cuda too
	$(FOUND)
	$(call build,programs)
programs: $(PROGRAMS) $(if $(GPU),$(ON_CUDA))
study: ## build/study: bench, experiments, exact, diagnose; nanospec bench and the others hand over to it
	$(call build,$(BUILD)/study)

define FOUND
	@echo "compiler  $$($(CXX) --version 2>/dev/null | head -1 || echo 'none: make deps')"
	@echo "SIMD      $$(echo | $(CXX) -march=$(ARCH) -dM -E -x c++ - 2>/dev/null | awk '/__AVX512F__/{a=1} /__AVX2__/{b=1} /__aarch64__/{c=1} END{print a ? "AVX-512" : b ? "AVX2" : c ? "NEON" : "portable version"}') (ARCH=$(ARCH))"
	@echo "CUDA      $(if $(GPU),$(GPU): make builds the -cuda programs too,$(if $(NVCC),no device here: make cuda builds the -cuda programs,no nvcc: the CPU does everything))"
endef

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile; sed -n '/^# Variables/,/^$$/s/^# *//p' Makefile

# ----------------------------------------------------------------------------------------------------------------
# Set-up

# What is needed is tried; the names are Debian's.
deps: ## installs the Debian packages that are missing
	@has() { command -v $$1 >/dev/null 2>&1; }; reads() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' $$1 | $(CXX) -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; }; \
	has $(firstword $(CXX)) || missing="g++"; has curl || ls data/*shakespeare.txt >/dev/null 2>&1 || missing="$$missing curl"; \
	for p in nlohmann-json3-dev:nlohmann/json.hpp doctest-dev:doctest/doctest.h libmd-dev:sha256.h libxxhash-dev:xxhash.h libpcre2-dev:pcre2.h libedit-dev:histedit.h; do \
	  reads $${p#*:} || missing="$$missing $${p%:*}"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "installing $$missing"; sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	if ! ( $(call alive,echo "  installing $$missing",{ $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing; } >/tmp/nanospec-deps.log 2>&1) ); then \
	  tail -3 /tmp/nanospec-deps.log; echo "make deps: could not install $$missing: apt-get: see /tmp/nanospec-deps.log, or install them by other means"; exit 1; fi

data: ## gets the training text
	@$(call alive,echo "data: getting the text",sh data/get.sh)

# ----------------------------------------------------------------------------------------------------------------
# Programs. What many files need is compiled once: machine/library.cpp says how.

INSTANTIATE := extern template
$(addprefix $(O)/machine/,sampling.o twins.o): INSTANTIATE := template
INSTANTIATES = $(if $(INSTANTIATE),'-DINSTANTIATE=$(INSTANTIATE)')
COMPILE = $(CXX) $(FLAGS) $(INSTANTIATES) $(MORE) $(CXXFLAGS) -MMD -MP -MF $(@:.o=.dep) -c

# Objects are made again when the flags change.
ALL_FLAGS := $(CXX) $(FLAGS) $(WAITS) $(TESTS_TRUSTED) $(CXXFLAGS)
$(shell mkdir -p $(BUILD)/tests $(addprefix $(O)/,machine drafters units commands study training tests $(wildcard tests/*)); \
  keep() { echo "$$2" | cmp -s - $$1 || echo "$$2" >$$1; }; keep $(BUILD)/flags '$(ALL_FLAGS)'; keep $(BUILD)/flags.cuda '$(WAITS) $(NVCCFLAGS)'; \
  for unit in $(foreach u,$(UNITS),$(u):$(subst $(empty) ,:,$(unit_$(u)))); do \
    printf '#include "%s"\n' $$(echo $${unit#*:} | tr : ' ') >$(O)/units/new; \
    cmp -s $(O)/units/new $(O)/units/$${unit%%:*}.cpp || mv $(O)/units/new $(O)/units/$${unit%%:*}.cpp; done)

$(O)/%.o: %.cpp $(BUILD)/flags
	$(call step,CXX)
	$(Q)$(COMPILE) $< -o $@
$(O)/units/%.o: $(O)/units/%.cpp $(BUILD)/flags
	$(call step,CXX)
	$(Q)$(COMPILE) $< -o $@
$(O)/%.o: %.cu $(BUILD)/flags
	$(call step,CXX)
	$(Q)$(COMPILE) -x c++ $< -o $@

# What waits for the disk, or for a person.
$(call in_units,command_line commands files experiments study) $(O)/study/study.o: OPTIMIZE := $(WAITS)
# It reads all levels of memory: under the sanitizers too that is to take a second.
$(O)/study/roofline.o: OPTIMIZE := -O1

# The page of `nanospec show`, as a string of C++.
$(O)/commands/page.inc: commands/page.html
	@{ printf 'R"page('; cat $<; printf ')page"\n'; } >$@
$(O)/units/commands.o: $(O)/commands/page.inc
$(O)/units/commands.o: MORE := -I$(O)/commands
# What computes on a CPU is in the library, so nvcc optimizes the other files' code for the host less. What ptxas says
# of each kernel goes into a file of its own, for tests/cuda/test_budgets.cpp; the rest is shown.
$(O)/%.cuda.o: OPTIMIZE := $(WAITS)
$(O)/machine/library.cuda.o: OPTIMIZE := $(COMPUTES)
define compile_cuda
	$(call step,NVCC)
	$(Q)$(NVCC) $(OPTIMIZE) $(NVCCFLAGS) $(INSTANTIATES) $(MORE) -MMD -MP -MF $(@:.o=.dep) -c $< -o $@ >$(@:.cuda.o=.ptxas) 2>&1; status=$$?; \
	grep -vE '^ptxas info|bytes stack frame' $(@:.cuda.o=.ptxas); exit $$status
endef
$(O)/%.cuda.o: %.cu $(BUILD)/flags.cuda
	$(compile_cuda)
$(O)/%.cuda.o: %.cpp $(BUILD)/flags.cuda
	$(compile_cuda)

# Of an inline function that several objects have, the linker takes the first: what is optimized stands first.
LINK = $(Q)$(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/nanospec: $(O)/nanospec.o $(LIBRARY) $(COMMANDS)
$(BUILD)/train_gpt: $(O)/train_gpt.o $(LIBRARY) $(call in_units,command_line)
# It runs on the CPU: train_gpt and train_gpt-cuda hand over to it.
$(BUILD)/train_drafter: $(O)/training/train_drafter.o $(LIBRARY) $(call in_units,command_line)
$(BUILD)/study: $(O)/nanospec.o $(O)/study/measured.o $(LIBRARY) $(O)/study/study.o $(STUDY) $(call in_units,commands)
# For tests/reference: hf_check.py, gguf_check.py, bpe_check.py.
$(BUILD)/dump_logits: $(O)/tests/reference/dump_logits.o $(LIBRARY)
$(BUILD)/dump_gguf: $(O)/tests/reference/dump_gguf.o $(FILES)
$(BUILD)/dump_tokens: $(O)/tests/reference/dump_tokens.o $(FILES)
$(PROGRAMS) $(BUILD)/dump_logits $(BUILD)/dump_gguf $(BUILD)/dump_tokens:
	$(call step,LINK)
	$(LINK)

$(BUILD)/nanospec-cuda: $(O)/machine/library.cuda.o $(O)/nanospec.cuda.o $(COMMANDS) $(FILES)
$(BUILD)/train_gpt-cuda: $(O)/machine/library.cuda.o $(O)/train_gpt.cuda.o $(call in_units,command_line) $(FILES)
$(BUILD)/study-cuda: $(O)/machine/library.cuda.o $(O)/nanospec.cuda.o $(O)/study/study.o $(O)/study/measured.cuda.o $(STUDY) $(call in_units,commands) $(FILES)
$(ON_CUDA):
	$(call step,LINK)
	$(Q)$(NVCC) -Wno-deprecated-gpu-targets $^ -o $@ $(LIBS)

cuda: ## the programs nanospec-cuda and train_gpt-cuda, by nvcc; each kernel's registers and loads held to its comment
	$(if $(NVCC),,$(error make cuda: there is no nvcc on the path: install the CUDA Toolkit))
	$(call build,$(ON_CUDA))
ifeq ($(origin GPU),command line)
	$(call build,tests)
	@echo "To carry to the machine with the device, which needs no network: $(ON_CUDA) $(BUILD)/tests/run, and $(TEXT)."
	@echo "There, in a copy of this folder: $(BUILD)/tests/run -tc='GPU: *', and $(BUILD)/nanospec-cuda bench --only gpu"
endif
	@NANOSPEC_PTXAS="$(patsubst %,$(O)/%.ptxas,machine/library nanospec study/measured train_gpt)" $(MAKE) --no-print-directory test T=ptxas
ifneq ($(CUOBJDUMP),)
	@PATH="$(dir $(CUOBJDUMP)):$$PATH" $(CUOBJDUMP) --dump-sass $(BUILD)/nanospec-cuda >$(BUILD)/nanospec.sass
	@NANOSPEC_SASS=$(BUILD)/nanospec.sass $(MAKE) --no-print-directory test T=sass
else
	@echo "no cuobjdump, so the kernels' loads are not counted: it comes with the CUDA Toolkit, or as the PyPI packages"
	@echo "nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm in build/venv"
endif

# Its first line says how to compile it.
single: $(BUILD)/nanospec_single.cu ## the core as one file, build/nanospec_single.cu
$(BUILD)/nanospec_single.cu: machine/single.sh machine/single.cpp $(wildcard *.h *.cuh machine/*.h cuda/machine.cuh)
	@sh machine/single.sh >$@.tmp && mv $@.tmp $@
	@head -4 $@

# ----------------------------------------------------------------------------------------------------------------
# Run

TEXT = $(firstword $(wildcard data/tinyshakespeare.txt data/shakespeare.txt))
METHODS := none; bigram chain:4; bigram tree:3x2; bigram auto; ngram:4 auto

# A run that was stopped goes on where it was; a finished one (train.json is written last) is not repeated.
run: ## gets what is missing, builds, trains the small model, compares plain and speculative decoding
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory data
	$(FOUND)
	$(call build,$(TO_RUN))
	@$(MAKE) --no-print-directory train-and-compare

.PHONY: train-small train-and-compare
train-small:
	@if [ ! -s runs/small/train.json ]; then \
	  $(BUILD)/train_gpt --data $(TEXT) --out runs/small --stats runs/small/train.json \
	    $$([ -s runs/small/optimizer.safetensors ] && echo --resume); fi

train-and-compare: train-small
	@$(BUILD)/nanospec generate --model runs/small --prompt "ROMEO:" --max_new_tokens 300 --quiet
	@echo; echo
	@$(BUILD)/nanospec compare --model runs/small --prompts data/prompts.jsonl --methods "$(METHODS)" \
	  --json runs/small/compare.json --svg runs/small/compare.svg
	@echo
	@echo 'written    runs/small: the model; runs/small/compare.svg: this table as a picture, .json: every run of it'
	@echo 'next       build/nanospec generate --model runs/small --prompt "JULIET:" --drafter ngram:4'
	@echo '           build/nanospec show --model runs/small --prompt "ROMEO:" --html build/show.html'
	@echo '           make chat: talk with a real model; make test: the proof; README.md: how it works'

# So it answers most questions right, and briefly: docs/results.md. With job control (set -m) a Ctrl-C is the chat's, not
# make's too.
CHAT := --model models/SmolLM2-135M-Instruct.Q4_1.gguf --temperature 0 --system "You give short and correct answers."
chat: ## gets a real model, SmolLM2-135M-Instruct, where the network allows it; builds; talks with it
	@$(MAKE) --no-print-directory deps
	@sh data/get_model.sh
	$(call build,$(BUILD)/nanospec)
	@[ ! -t 0 ] || set -m; $(BUILD)/nanospec chat $(CHAT); exit $$?

# ----------------------------------------------------------------------------------------------------------------
# Tests

# tests/cuda/cuda_*.cu are compiled for the emulator, and where a GPU is for that too, into the same program, each under
# a namespace of its own, or the linker would take one for the other. The emulator's hold all that they need.
TESTS := $(patsubst %.cpp,$(O)/%.o,$(filter-out tests/reference/%,$(wildcard tests/*.cpp tests/*/*.cpp)))
EMULATED := $(patsubst %.cu,$(O)/%.o,$(wildcard tests/cuda/cuda_*.cu))
ON_GPU := $(if $(GPU),$(EMULATED:.o=.cuda.o))
$(EMULATED) $(ON_GPU): INSTANTIATE :=
$(ON_GPU): OPTIMIZE := $(COMPUTES)
$(ON_GPU): MORE := -Dnanospec=nanospec_cuda
# Most tests spend their time in the library and the commands: they are not optimized. These compute themselves,
# gradients against differences, sweeps, distributions.
COMPUTING_TESTS := $(addprefix $(O)/tests/,core/test_model.o core/test_operations.o core/test_real.o \
  core/test_sweep.o core/test_sample.o drafters/test_medusa.o drafters/test_parallel.o rules/test_verify.o \
  training/test_train_parallel.o)
$(O)/tests/%.o: OPTIMIZE := -O0
$(O)/tests/%.o: TRUSTED := $(TESTS_TRUSTED)
$(TESTS) $(EMULATED): MORE := -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS
$(COMPUTING_TESTS): OPTIMIZE := -O1

# T=tree: the files with tests whose names begin so, with commands and programs only where they use them. What commands
# ask of the engine is in nanospec.cu, beside its main(), or is the stand-in of tests/commands/.
CHOSEN := $(if $(T),$(if $(filter emulated%,$(T)),$(wildcard tests/cuda/cuda_*.cu),$(shell grep -lE 'TEST_CASE."$(T)' tests/*/*.cpp)))
WIDE := $(if $(CHOSEN),$(shell grep -lE 'include "(commands|study|training|tests/command_line|tests/picture|tests/world|tests/parallel_world)' $(CHOSEN)))
CHOSEN_OBJECTS := $(patsubst %.cu,$(O)/%.o,$(patsubst %.cpp,$(O)/%.o,$(CHOSEN)))
TESTED := $(LIBRARY) $(COMMANDS) $(STUDY)
$(BUILD)/tests/run: $(TESTED) $(EMULATED) $(ON_GPU) $(COMPUTING_TESTS) $(TESTS)
$(BUILD)/tests/run-$(T): $(if $(WIDE),$(TESTED),$(LIBRARY)) \
  $(sort $(O)/tests/main.o $(CHOSEN_OBJECTS) $(if $(WIDE),$(O)/tests/commands/stand_in.o))
# One text on every machine: the tests that show it, few and small enough for an emulated processor. How near functions
# come to libm's is not asked there: it follows from their bits, which are.
EVERYWHERE := main core/test_golden machine/test_integers machine/test_numbers machine/test_simd
$(BUILD)/tests/run-everywhere: $(addprefix $(O)/,machine/library.o machine/sampling.o machine/twins.o drafters/logits.o) \
  $(EVERYWHERE:%=$(O)/tests/%.o)
$(BUILD)/tests/run $(BUILD)/tests/run-$(T) $(BUILD)/tests/run-everywhere:
	$(call step,LINK)
	$(if $(ON_GPU),$(Q)$(NVCC) -Wno-deprecated-gpu-targets $^ -o $@ $(LIBS),$(LINK))

tests: $(if $(T),$(if $(CHOSEN),,$(error no test's name begins with $(T): T=$(T): choose tree, model, shapes, commands, ...))$(if $(WIDE),$(PROGRAMS)) $(BUILD)/tests/run-$(T),$(BUILD)/tests/run)

test: ## builds and runs the tests, with a tenth of the long sweeps; the last line counts passed, failed, skipped
	@$(MAKE) --no-print-directory deps
	$(call build,$(if $(T),,programs) tests)
	@$(BUILD)/tests/run$(if $(T),-$(T) -tc="$(T)*")

# A copy of this folder is made, with what is built; there every command runs.
documents: ## runs every command that the documents show, and compares what they say that it prints: three minutes
	@$(MAKE) --no-print-directory data
	$(call build,programs tests)
	@sh tests/documents/run.sh

transcripts: ## writes what commands print into the documents, as make documents compares it
	@$(MAKE) --no-print-directory data
	$(call build,programs)
	@sh tests/documents/run.sh transcripts

prove: ## the tests with the whole of their sweeps, and the documents' long commands: an hour; with the model of make chat more
	@NANOSPEC_PROVE=1 $(MAKE) --no-print-directory test
	@NANOSPEC_PROVE=1 $(MAKE) --no-print-directory documents

.PHONY: everywhere
everywhere:
	$(call build,$(BUILD)/tests/run-everywhere)
	@$(EMULATOR) $(BUILD)/tests/run-everywhere $(if $(EMULATOR),-tce="*stated error*")

# On Debian: dpkg --add-architecture arm64; apt-get update; apt-get install g++-aarch64-linux-gnu qemu-user libmd-dev:arm64
arm64: ## the golden texts and the tests of numbers for arm64, by Debian's cross compiler, on an emulated processor
	@$(MAKE) --no-print-directory everywhere CXX=aarch64-linux-gnu-g++ ARCH=armv8.2-a+dotprod BUILD=build/arm64 \
	  LDFLAGS=-static LIBS=-lmd EMULATOR=qemu-aarch64

# ----------------------------------------------------------------------------------------------------------------
# Measuring

bench: ## tables and pictures of speed, into build/bench: under ten minutes; a GPU takes some more
	$(call build,programs)
	@$(BUILD)/nanospec bench --out $(BUILD)/bench
	@$(if $(GPU),$(BUILD)/nanospec-cuda bench --only gpu --out $(BUILD)/bench/gpu,echo; \
	  echo "The GPU's rows are left out, unmeasured: $(if $(NVCC),nvidia-smi -L names no device,there is no nvcc)")

# As many compilers at a time as JOBS says: it has no make of ours to ask.
peers: ## builds llama.cpp into build/peers, once, so that bench holds it beside nanospec: minutes to half an hour
	@JOBS=$(JOBS) CXX="$(CXX)" sh tests/reference/peers.sh

# The target and the drafters; `sequoia` and `calibrated` want the drafters' accuracy on the target.
experiments: ## the literature's experiments, into build/experiments: 12 minutes, and the training of what is missing
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory data
	$(call build,$(PROGRAMS))
	@$(MAKE) --no-print-directory train-and-experiment

# $(call once,DIR/NAME,MARK,COMMAND): trains what is missing. Weights are written as training goes on: MARK says that
# it has not ended.
once = if [ ! -s $(1).safetensors ] || [ -e $(2) ]; then mkdir -p $(dir $(1)) && touch $(2) && $(3) && rm $(2); fi
M := runs/medium
DRAFTERS := bigram ngram:4 suffix+ngram:4 gpt:runs/small
LEARNED := medusa parallel parallel:$(M)/sequential
TRAIN_PARALLEL = $(BUILD)/train_drafter --parallel $(M) --data $(TEXT) --eval_interval 200 --overwrite

.PHONY: train-medium train-drafters train-and-experiment
train-medium:
	@$(call once,$(M)/model,$(M)/unfinished,$(BUILD)/train_gpt --data $(TEXT) --out $(M) --preset medium \
	  --max_iters 2000 --lr_decay_iters 2000 --dropout 0.1 --stats $(M)/train.json \
	  $$([ -s $(M)/optimizer.safetensors ] && echo --resume))

train-drafters: train-medium
	@$(call once,$(M)/medusa,$(M)/medusa.unfinished,$(BUILD)/train_drafter --medusa $(M) --data $(TEXT) --medusa_root \
	  --medusa_tokens 131072 --eval_interval 250 --overwrite --stats $(M)/medusa.json)
	@$(call once,$(M)/parallel,$(M)/parallel.unfinished,$(TRAIN_PARALLEL) --stats $(M)/parallel.json)
	@$(call once,$(M)/sequential/parallel,$(M)/sequential/unfinished,$(TRAIN_PARALLEL) --parallel_sequential \
	  --max_iters 800 --out $(M)/sequential --stats $(M)/sequential/parallel.json)

train-and-experiment: train-small train-drafters
	@calibrate() { $(BUILD)/nanospec calibrate --model $(M) --drafter $$1 --temperature $$2 --quiet \
	    >/dev/null || echo "not calibrated: $$1 at temperature $$2"; }; \
	for drafter in $(DRAFTERS); do for temperature in 0 0.4 0.7 1; do calibrate $$drafter $$temperature; done; done; \
	for drafter in $(LEARNED); do for temperature in 0 0.7 1; do calibrate $$drafter $$temperature; done; done
	@$(BUILD)/nanospec experiments --model $(M) --drafter_model runs/small --out $(BUILD)/experiments

# ----------------------------------------------------------------------------------------------------------------
# The course (course/README.md). A submission is judged by the starter's grader and by the engine's own answers, which
# stay out of the starter.

REFERENCE := $(CURDIR)/$(BUILD)/reference
CHAPTERS := 1 2 4 5 6 10
.PHONY: course grade starter
starter: $(BUILD)/make_course
	@$(BUILD)/make_course starter $(BUILD)/course >/dev/null
	+@$(MAKE) -s -C $(BUILD)/course deps
	+@$(MAKE) --no-print-directory -j$(JOBS) -C $(BUILD)/course build/grade
	+@$(MAKE) --no-print-directory -s -j$(JOBS) -C $(BUILD)/course B=$(REFERENCE) FROM=$(CURDIR) $(CHAPTERS:%=$(REFERENCE)/chapter%)
$(BUILD)/make_course: course/course.cpp course/regions.h course/files.h
	@mkdir -p $(BUILD) && $(CXX) -std=c++17 -O1 $(WARN) -I. $< -o $@

course: ## the course, into build/course: a starter for students with chapters and grader; course/README.md is for teachers
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory starter
	@echo "The engine itself is graded, to record right answers:"
	@mkdir -p $(BUILD)/course/course/recorded && cd $(BUILD)/course && build/grade --record --reference $(REFERENCE) --submission $(CURDIR)
	@tar -czf $(BUILD)/course.tar.gz --exclude=course/build --exclude=course/results.json -C $(BUILD) course
	@echo "$(BUILD)/course.tar.gz is what students get; make grade SUBMISSION=folder judges what comes back"

grade: ## judges what students wrote: SUBMISSION=folder, CHAPTER=5 for one; without a folder the engine itself
	@$(MAKE) --no-print-directory starter
	@cd $(BUILD)/course && build/grade --reference $(REFERENCE) --hide $(CURDIR) --submission "$(abspath $(or $(SUBMISSION),.))" \
	  --results "$(abspath $(or $(RESULTS),$(BUILD)/results.json))" $(if $(CHAPTER),--chapter "$(CHAPTER)")

# ----------------------------------------------------------------------------------------------------------------

clean: ## removes what was built; data, models, build/venv and build/peers stay
	@rm -rf $(addprefix build/,objects tests sanitize flags* step *.sass course course.tar.gz make_course reference results.json bench experiments \
	  nanospec nanospec-cuda train_gpt train_gpt-cuda train_drafter study study-cuda nanospec_single.cu single dump_logits dump_gguf dump_tokens)

format: ## clang-format over all sources
	@clang-format -i $$(git ls-files '*.h' '*.cu' '*.cuh' '*.cpp')

-include $(wildcard $(O)/*.dep $(O)/*/*.dep $(O)/tests/*/*.dep)
