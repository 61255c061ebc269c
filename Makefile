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
FLAGS = -std=c++17 $(OPTIMIZE) $(SANITIZERS) $(TRUSTED) $(EXACT) $(WARN) $(MEMORY) -pthread
LIBS := -lmd -lpcre2-8

NVCC := $(shell command -v nvcc)
NVCCFLAGS := -std=c++17 -O3 --fmad=false -x cu -Wno-deprecated-gpu-targets \
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] -Xptxas -v \
  -I. $(addprefix -Xcompiler ,$(filter-out -I.,$(EXACT)) $(WARN) -Wno-unknown-pragmas -pthread)
CUOBJDUMP := $(firstword $(shell command -v cuobjdump) $(wildcard build/venv/lib/python3*/site-packages/nvidia/*/bin/cuobjdump))
GPU := $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null | head -1))

# As many compilers at a time as there are cores, and gigabytes of free memory; the command line's -j goes first.
JOBS := $(shell awk -v n=$$(nproc) '/MemAvailable/{m = int($$2 / 1048576)} END{print m < 1 ? 1 : m < n ? m : n}' /proc/meminfo)
ALL_CORES = +@$(MAKE) --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS))

COMMANDS := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard commands/*.cpp study/*.cpp))
FILES := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard files/*.cpp growth/*.cpp drafters/*.cpp) machine/sampling.cpp)
LIBRARY := $(BUILD)/machine/library.o $(FILES)
COMMAND_LINE := $(BUILD)/commands/cli.o $(BUILD)/commands/outputs.o
# train_drafter takes longest to compile: first.
PROGRAMS := $(BUILD)/train_drafter $(BUILD)/nanospec $(BUILD)/train_gpt
ON_CUDA := $(BUILD)/nanospec-cuda $(BUILD)/train_gpt-cuda

.PHONY: all programs help deps data chat run test tests prove arm64 cuda single bench peers experiments clean format
all: ## the programs nanospec, train_gpt and train_drafter, into build/; with a GPU those of make cuda too
	@echo "compiler  $$($(CXX) --version 2>/dev/null | head -1 || echo 'none: make deps')"
	@echo "SIMD      $$(echo | $(CXX) -march=$(ARCH) -dM -E -x c++ - 2>/dev/null | awk '/__AVX512F__/{a=1} /__AVX2__/{b=1} /__aarch64__/{c=1} END{print a ? "AVX-512" : b ? "AVX2" : c ? "NEON" : "portable version"}') (ARCH=$(ARCH))"
	@echo "CUDA      $(if $(GPU),$(GPU): building the -cuda programs too,$(if $(NVCC),no device here: make cuda builds the -cuda programs,no nvcc: the CPU does everything))"
	$(ALL_CORES) programs
programs: $(PROGRAMS) $(if $(GPU),$(ON_CUDA))

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile; sed -n '/^# Variables/,/^$$/s/^# *//p' Makefile

# ----------------------------------------------------------------------------------------------------------------
# Set-up

# What is needed is tried; the names are Debian's.
deps: ## installs the Debian packages that are missing
	@has() { command -v $$1 >/dev/null 2>&1; }; reads() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' $$1 | $(CXX) -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; }; \
	has $(firstword $(CXX)) || missing="g++"; has curl || ls data/*shakespeare.txt >/dev/null 2>&1 || missing="$$missing curl"; \
	for p in nlohmann-json3-dev:nlohmann/json.hpp libcli11-dev:CLI/CLI.hpp doctest-dev:doctest/doctest.h libmd-dev:sha256.h libxxhash-dev:xxhash.h libpcre2-dev:pcre2.h; do \
	  reads $${p#*:} || missing="$$missing $${p%:*}"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "installing $$missing"; sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	if ! { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing; } >/tmp/nanospec-deps.log 2>&1; then \
	  tail -3 /tmp/nanospec-deps.log; echo "make deps: could not install $$missing: apt-get: see /tmp/nanospec-deps.log, or install them by other means"; exit 1; fi

data: ## gets the training text
	@sh data/get.sh

# ----------------------------------------------------------------------------------------------------------------
# Programs. What many files need is compiled once, into $(LIBRARY): machine/library.cpp says how; and the sources of
# files/, growth/ and drafters/.

INSTANTIATE := extern template
$(BUILD)/machine/library.o $(BUILD)/machine/sampling.o: INSTANTIATE := template
COMPILE = $(CXX) $(FLAGS) $(if $(INSTANTIATE),'-DINSTANTIATE=$(INSTANTIATE)') $(MORE) $(CXXFLAGS) $(if $(READ_ONCE),-include $(READ_ONCE:.gch=)) -MMD -MP -MF $(@:.o=.dep) -c

# Objects are made again when the flags change.
ALL_FLAGS := $(CXX) $(FLAGS) $(WAITS) $(TESTS_TRUSTED) $(CXXFLAGS) $(NVCCFLAGS)
$(shell mkdir -p $(addprefix $(BUILD)/,machine drafters files growth commands study training tests $(wildcard tests/*)); \
  echo '$(ALL_FLAGS)' | cmp -s - $(BUILD)/flags || echo '$(ALL_FLAGS)' >$(BUILD)/flags)

# The libraries' headers: g++ reads them once, and has them in front of every file; once for each level of optimization,
# as it would take that of the headers. No file counts on it.
LIBRARIES := algorithm array atomic chrono cmath condition_variable cstdint cstdio cstring filesystem fstream functional \
  map memory mutex set sstream stdexcept string thread unordered_map utility variant vector nlohmann/json.hpp
READ_ONCE_AT = $(if $(findstring clang,$(CXX)),,$(BUILD)/libraries$(1).h.gch)
READ_ONCE := $(call READ_ONCE_AT,$(COMPUTES))
$(BUILD)/libraries%.h.gch: $(BUILD)/flags
	@echo "  CXX   $@"
	@printf '#include <%s>\n' $(LIBRARIES) >$(@:.gch=)
	$(Q)$(CXX) $(FLAGS) $(CXXFLAGS) -x c++-header $(@:.gch=) -o $@

$(BUILD)/%.o: %.cpp $(BUILD)/flags
	@echo "  CXX   $@"
	$(Q)$(COMPILE) $< -o $@
$(BUILD)/%.o: %.cu $(BUILD)/flags
	@echo "  CXX   $@"
	$(Q)$(COMPILE) -x c++ $< -o $@

# A checkpoint waits for the disk. nanospec.o does not: what it inlines of an update, `bench` times.
WAITING := $(BUILD)/files/checkpoint.o $(COMMANDS)
COMPUTING := $(filter-out $(WAITING),$(LIBRARY)) $(BUILD)/nanospec.o $(BUILD)/train_gpt.o $(BUILD)/training/train_drafter.o
$(COMPUTING): $(READ_ONCE)
$(WAITING) $(call READ_ONCE_AT,$(WAITS)): OPTIMIZE := $(WAITS)
$(WAITING): READ_ONCE := $(call READ_ONCE_AT,$(WAITS))
$(WAITING): $(call READ_ONCE_AT,$(WAITS))
# It reads all levels of memory: under the sanitizers too that is to take a second.
$(BUILD)/study/roofline.o: OPTIMIZE := -O1
$(BUILD)/study/roofline.o: READ_ONCE :=

# The page of `nanospec show`, as a string of C++.
$(BUILD)/commands/page.inc: commands/page.html
	@{ printf 'R"page('; cat $<; printf ')page"\n'; } >$@
$(BUILD)/commands/show.o: $(BUILD)/commands/page.inc
$(BUILD)/commands/show.o: MORE := -I$(BUILD)/commands
# What ptxas says of each kernel goes into a file of its own, for tests/cuda/test_budgets.cpp; the rest is shown.
$(BUILD)/%.cuda.o: %.cu $(BUILD)/flags
	@echo "  NVCC  $@"
	$(Q)$(NVCC) $(NVCCFLAGS) $(MORE) -MMD -MP -MF $(@:.o=.dep) -c $< -o $@ >$(@:.cuda.o=.ptxas) 2>&1; status=$$?; \
	grep -vE '^ptxas info|bytes stack frame' $(@:.cuda.o=.ptxas); exit $$status

# Of an inline function that several objects have, the linker takes the first: what is optimized stands first.
LINK = $(Q)$(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/nanospec: $(LIBRARY) $(BUILD)/nanospec.o $(COMMANDS)
$(BUILD)/train_gpt: $(LIBRARY) $(BUILD)/train_gpt.o $(COMMAND_LINE)
# It runs on the CPU: train_gpt and train_gpt-cuda hand over to it.
$(BUILD)/train_drafter: $(LIBRARY) $(BUILD)/training/train_drafter.o $(COMMAND_LINE)
# For tests/reference: hf_check.py, gguf_check.py, bpe_check.py.
$(BUILD)/dump_logits: $(BUILD)/tests/reference/dump_logits.o $(LIBRARY)
$(BUILD)/dump_gguf: $(BUILD)/tests/reference/dump_gguf.o $(FILES)
$(BUILD)/dump_tokens: $(BUILD)/tests/reference/dump_tokens.o $(FILES)
$(PROGRAMS) $(BUILD)/dump_logits $(BUILD)/dump_gguf $(BUILD)/dump_tokens:
	@echo "  LINK  $@"
	$(LINK)

$(BUILD)/nanospec-cuda: $(BUILD)/nanospec.cuda.o $(COMMANDS) $(FILES)
$(BUILD)/train_gpt-cuda: $(BUILD)/train_gpt.cuda.o $(COMMAND_LINE) $(FILES)
$(ON_CUDA):
	@echo "  LINK  $@"
	$(Q)$(NVCC) -Wno-deprecated-gpu-targets $^ -o $@ $(LIBS)

cuda: ## the programs nanospec-cuda and train_gpt-cuda, by nvcc; each kernel's registers and loads held to its comment
	$(if $(NVCC),,$(error make cuda: there is no nvcc on the path: install the CUDA Toolkit))
	$(ALL_CORES) $(ON_CUDA)
ifeq ($(origin GPU),command line)
	$(ALL_CORES) tests
	@echo "To carry to the machine with the device, which needs no network: $(ON_CUDA) $(BUILD)/tests/run, and $(TEXT)."
	@echo "There, in a copy of this folder: $(BUILD)/tests/run -tc='GPU: *', and $(BUILD)/nanospec-cuda bench --only gpu"
endif
	@NANOSPEC_PTXAS="$(BUILD)/nanospec.ptxas $(BUILD)/train_gpt.ptxas" $(MAKE) --no-print-directory test T=ptxas
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
	@head -3 $@

# ----------------------------------------------------------------------------------------------------------------
# Run

TEXT = $(firstword $(wildcard data/tinyshakespeare.txt data/shakespeare.txt))
METHODS := none; bigram chain:4; bigram tree:3x2; bigram auto; ngram:4 auto

# A run that was stopped goes on where it was; a finished one (train.json is written last) is not repeated.
run: ## gets what is missing, builds, trains the small model, compares plain and speculative decoding
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory data
	@$(MAKE) --no-print-directory all
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

# The sampling is what the model's authors advise.
chat: ## gets a real model, SmolLM2-135M-Instruct, where the network allows it; builds; talks with it
	@$(MAKE) --no-print-directory deps
	@sh data/get_model.sh
	$(ALL_CORES) $(BUILD)/nanospec
	@$(BUILD)/nanospec chat --model models/SmolLM2-135M-Instruct.Q4_1.gguf --temperature 0.2 --top_p 0.9

# ----------------------------------------------------------------------------------------------------------------
# Tests

# tests/cuda/cuda_*.cu are compiled for the emulator, and where a GPU is for that too, into the same program, each under
# a namespace of its own, or the linker would take one for the other. The emulator's hold all that they need.
TESTS := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/reference/%,$(wildcard tests/*.cpp tests/*/*.cpp)))
EMULATED := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard tests/cuda/cuda_*.cu))
ON_GPU := $(if $(GPU),$(EMULATED:.o=.cuda.o))
$(EMULATED): INSTANTIATE :=
$(ON_GPU): MORE := -Dnanospec=nanospec_cuda
# Most tests spend their time in the library and the commands: they are not optimized. These compute themselves,
# gradients against differences, sweeps, distributions.
COMPUTING_TESTS := $(addprefix $(BUILD)/tests/,core/test_model.o core/test_operations.o core/test_real.o \
  core/test_sweep.o core/test_sample.o drafters/test_medusa.o drafters/test_parallel.o rules/test_verify.o \
  training/test_train_parallel.o)
$(BUILD)/tests/%.o: OPTIMIZE := -O0
$(BUILD)/tests/%.o: TRUSTED := $(TESTS_TRUSTED)
$(BUILD)/tests/%.o: READ_ONCE :=
$(TESTS) $(EMULATED): MORE := -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS
$(COMPUTING_TESTS): OPTIMIZE := -O1
$(COMPUTING_TESTS): READ_ONCE := $(call READ_ONCE_AT,-O1)
$(COMPUTING_TESTS): $(call READ_ONCE_AT,-O1)

# T=tree: the files with tests whose names begin so, with commands and programs only where they use them. What commands
# ask of the engine is in nanospec.cu, beside its main(), or is the stand-in of tests/commands/.
CHOSEN := $(if $(T),$(if $(filter emulated%,$(T)),$(wildcard tests/cuda/cuda_*.cu),$(shell grep -lE 'TEST_CASE."$(T)' tests/*/*.cpp)))
WIDE := $(if $(CHOSEN),$(shell grep -lE 'include "(commands|study|training|tests/command_line|tests/picture|tests/world|tests/parallel_world)' $(CHOSEN)))
CHOSEN_OBJECTS := $(patsubst %.cu,$(BUILD)/%.o,$(patsubst %.cpp,$(BUILD)/%.o,$(CHOSEN)))
$(BUILD)/tests/run: $(LIBRARY) $(COMMANDS) $(EMULATED) $(ON_GPU) $(COMPUTING_TESTS) $(TESTS)
$(BUILD)/tests/run-$(T): $(LIBRARY) $(if $(WIDE),$(COMMANDS)) \
  $(sort $(BUILD)/tests/main.o $(CHOSEN_OBJECTS) $(if $(WIDE),$(BUILD)/tests/commands/stand_in.o))
# One text on every machine: the tests that show it, few and small enough for an emulated processor. How near functions
# come to libm's is not asked there: it follows from their bits, which are.
EVERYWHERE := main core/test_golden machine/test_integers machine/test_numbers machine/test_simd
$(BUILD)/tests/run-everywhere: $(addprefix $(BUILD)/,machine/library.o machine/sampling.o drafters/logits.o) \
  $(EVERYWHERE:%=$(BUILD)/tests/%.o)
$(BUILD)/tests/run $(BUILD)/tests/run-$(T) $(BUILD)/tests/run-everywhere:
	@echo "  LINK  $@"
	$(if $(ON_GPU),$(Q)$(NVCC) -Wno-deprecated-gpu-targets $^ -o $@ $(LIBS),$(LINK))

tests: $(if $(T),$(if $(CHOSEN),,$(error no test's name begins with $(T): T=$(T): choose tree, model, shapes, commands, ...))$(if $(WIDE),$(PROGRAMS)) $(BUILD)/tests/run-$(T),$(BUILD)/tests/run)

test: ## builds and runs the tests, with a tenth of the long sweeps; the last line counts passed, failed, skipped
	@$(MAKE) --no-print-directory deps
	$(ALL_CORES) $(if $(T),,programs) tests
	@$(BUILD)/tests/run$(if $(T),-$(T) -tc="$(T)*")

prove: ## the tests with the whole of their sweeps: some minutes more; with the model of make chat many
	@NANOSPEC_PROVE=1 $(MAKE) --no-print-directory test

.PHONY: everywhere
everywhere:
	$(ALL_CORES) $(BUILD)/tests/run-everywhere
	@$(EMULATOR) $(BUILD)/tests/run-everywhere $(if $(EMULATOR),-tce="*stated error*")

# On Debian: dpkg --add-architecture arm64; apt-get update; apt-get install g++-aarch64-linux-gnu qemu-user libmd-dev:arm64
arm64: ## the golden texts and the tests of numbers for arm64, by Debian's cross compiler, on an emulated processor
	@$(MAKE) --no-print-directory everywhere CXX=aarch64-linux-gnu-g++ ARCH=armv8.2-a+dotprod BUILD=build/arm64 \
	  LDFLAGS=-static LIBS=-lmd EMULATOR=qemu-aarch64

# ----------------------------------------------------------------------------------------------------------------
# Measuring

bench: ## tables and pictures of speed, into build/bench: under ten minutes; a GPU takes some more
	$(ALL_CORES) programs
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
	$(ALL_CORES) $(PROGRAMS)
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
	@cd $(BUILD)/course && build/grade --reference $(REFERENCE) --submission "$(abspath $(or $(SUBMISSION),.))" \
	  --results "$(abspath $(or $(RESULTS),$(BUILD)/results.json))" $(if $(CHAPTER),--chapter "$(CHAPTER)")

# ----------------------------------------------------------------------------------------------------------------

clean: ## removes what was built; data, models, build/venv and build/peers stay
	@rm -rf $(addprefix build/,*.o *.dep *.ptxas *.sass libraries* machine drafters files growth commands study training tests sanitize flags course course.tar.gz make_course reference results.json bench experiments \
	  nanospec nanospec-cuda train_gpt train_gpt-cuda train_drafter nanospec_single.cu dump_logits dump_gguf dump_tokens)

format: ## clang-format over all sources
	@clang-format -i $$(git ls-files '*.h' '*.cu' '*.cuh' '*.cpp')

-include $(wildcard $(BUILD)/*.dep $(BUILD)/*/*.dep $(BUILD)/tests/*/*.dep)
