# nanospec: `make run` sets everything up, trains, and compares; `make test` proves it.
#
#   make            build/nanospec, build/train_gpt and build/train_drafter; with nvcc also the -cuda binaries of the
#                   first two; installs nothing
#   make deps       installs the Debian packages that are missing
#   make data       gets the training text
#   make run        deps, data, build, train the small model, compare plain and speculative decoding
#   make test       deps, build, all tests
#   make single     the core as one file, build/nanospec_single.cu
#   make bench      build; tables and pictures of speed, into build/bench: under ten minutes; a GPU takes some more
#   make experiments  build, train the medium target and the drafters on it if they are missing; the literature's
#                   experiments, into build/experiments: 12 minutes, and the training
#   make clean      removes what was built; data and trained models stay
#   make format     clang-format over all sources
#
# Variables: ARCH=x86-64 (or any -march name; default: this machine), CUDA=0 (leave nvcc alone), CXX=clang++,
# SANITIZE=1 (AddressSanitizer and UBSan, in a folder of its own).

CXX ?= g++
ifeq ($(origin CXX),default)
CXX := g++
endif
ARCH ?= native
CUDA ?= 1
SANITIZE ?= 0

# clang would warn of every loop that it could not vectorize, though it may have no reason to.
WARN := -Wall -Wextra$(if $(findstring clang,$(CXX)), -Wno-pass-failed)
# Contraction off: a fused multiply-add is written as one, or the bits would depend on the compiler's mood.
# Includes are written from the top: "growth/shapes.h".
EXACT := -I. -ffp-contract=off -fno-math-errno -march=$(ARCH)
CXXFLAGS := -std=c++17 -O3 $(EXACT) $(WARN) -pthread
LIBS := -pthread -lmd
ifeq ($(SANITIZE),1)
BUILD := build/sanitize
CXXFLAGS := -std=c++17 -O1 -g1 $(EXACT) $(WARN) -pthread -fsanitize=address,undefined -fno-sanitize-recover=all
CUDA := 0
else
BUILD := build
endif

NVCC := $(if $(filter 1,$(CUDA)),$(shell command -v nvcc))
NVCCFLAGS := -std=c++17 -O3 --fmad=false -x cu -Wno-deprecated-gpu-targets \
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90] -Xptxas -v \
  -I. $(addprefix -Xcompiler ,$(filter-out -I.,$(EXACT)) $(WARN) -Wno-unknown-pragmas -pthread)
GPU := $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null | head -1))

COMMANDS := $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard commands/*.cpp study/*.cpp))
TESTS := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/reference/%,$(wildcard tests/*.cpp tests/*/*.cpp)))
PROGRAMS := $(BUILD)/nanospec $(BUILD)/train_gpt $(BUILD)/train_drafter
ON_CUDA := $(BUILD)/nanospec-cuda $(BUILD)/train_gpt-cuda
PACKAGES := g++ nlohmann-json3-dev libcli11-dev doctest-dev libmd-dev curl

.PHONY: all say deps data run test tests single bench experiments clean format
all: say $(PROGRAMS) $(if $(NVCC),$(ON_CUDA))

say:
	@echo "compiler  $(shell $(CXX) --version 2>/dev/null | head -1 || echo 'none: make deps')"
	@echo "SIMD      $(shell echo | $(CXX) -march=$(ARCH) -dM -E -x c++ - 2>/dev/null | awk '/__AVX512F__/{a=1} /__AVX2__/{b=1} END{print a ? "AVX-512" : b ? "AVX2" : "portable text"}') (ARCH=$(ARCH))"
	@echo "CUDA      $(if $(NVCC),$(NVCC): building the -cuda binaries too,none: the CPU does everything)"

# ----------------------------------------------------------------------------------------------------------------
# Set-up

deps:
	@missing=""; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "installing$$missing"; sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	if ! { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing; } >/tmp/nanospec-deps.log 2>&1; then \
	  tail -3 /tmp/nanospec-deps.log; echo "make deps: could not install$$missing: apt-get: see /tmp/nanospec-deps.log"; exit 1; fi

data:
	@sh data/get.sh

# ----------------------------------------------------------------------------------------------------------------
# Programs

# Objects are made again when the flags change.
$(shell mkdir -p $(addprefix $(BUILD)/,commands study training tests $(wildcard tests/*)); echo '$(CXX) $(CXXFLAGS) $(NVCCFLAGS)' | cmp -s - $(BUILD)/flags || echo '$(CXX) $(CXXFLAGS) $(NVCCFLAGS)' >$(BUILD)/flags)

$(BUILD)/%.o: %.cpp $(BUILD)/flags
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
$(BUILD)/%.o: %.cu $(BUILD)/flags
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $(@:.o=.dep) -c -x c++ $< -o $@
# The page of `nanospec show`, as a string of C++.
$(BUILD)/commands/page.inc: commands/page.html
	{ printf 'R"page('; cat $<; printf ')page"\n'; } >$@
$(BUILD)/commands/show.o: $(BUILD)/commands/page.inc
$(BUILD)/commands/show.o: CXXFLAGS += -I$(BUILD)/commands
# What ptxas says of each kernel goes into a file of its own, for tests/cuda/test_budgets.cpp; the rest is shown.
$(BUILD)/%.cuda.o: %.cu $(BUILD)/flags
	$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.dep) -c $< -o $@ >$(@:.cuda.o=.ptxas) 2>&1; status=$$?; \
	grep -vE '^ptxas info|bytes stack frame' $(@:.cuda.o=.ptxas); exit $$status

$(BUILD)/nanospec: $(BUILD)/nanospec.o $(COMMANDS)
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/train_gpt: $(BUILD)/train_gpt.o $(BUILD)/commands/cli.o
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LIBS)
# It runs on the CPU: train_gpt and train_gpt-cuda hand over to it.
$(BUILD)/train_drafter: $(BUILD)/training/train_drafter.o $(BUILD)/commands/cli.o
	$(CXX) $(CXXFLAGS) $^ -o $@ $(LIBS)
$(BUILD)/nanospec-cuda: $(BUILD)/nanospec.cuda.o $(COMMANDS)
	$(NVCC) -Wno-deprecated-gpu-targets $^ -o $@ -lmd
$(BUILD)/train_gpt-cuda: $(BUILD)/train_gpt.cuda.o $(BUILD)/commands/cli.o
	$(NVCC) -Wno-deprecated-gpu-targets $^ -o $@ -lmd

# The core as one file: its first line says how to compile it.
single: $(BUILD)/nanospec_single.cu
$(BUILD)/nanospec_single.cu: machine/single.sh machine/single.cpp $(wildcard *.h *.cuh machine/*.h cuda/machine.cuh)
	sh machine/single.sh >$@.tmp && mv $@.tmp $@
	@head -3 $@

# For tests/reference/hf_check.py.
$(BUILD)/dump_logits: tests/reference/dump_logits.cpp $(BUILD)/flags
	$(CXX) $(CXXFLAGS) -MMD -MP -MF $@.dep $< -o $@ $(LIBS)

# ----------------------------------------------------------------------------------------------------------------
# Run

TEXT = $(firstword $(wildcard data/tinyshakespeare.txt data/shakespeare.txt))
METHODS := none; bigram chain:4; bigram tree:3x2; bigram auto; ngram:4 auto

# A run that was stopped goes on where it was; a finished one (train.json is written last) is not repeated.
run:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory data
	@$(MAKE) --no-print-directory -j2 all
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

# ----------------------------------------------------------------------------------------------------------------
# Tests

# tests/cuda/cuda_*.cu are compiled for the emulator, and where a GPU is for that too, into the same program: under another
# namespace, or the linker would take one for the other. For the emulator they are optimized less: what they compute is
# the same, and they compile three times as fast.
EMULATED := $(patsubst %.cu,$(BUILD)/%.o,$(wildcard tests/cuda/cuda_*.cu))
$(EMULATED): CXXFLAGS += $(if $(filter 1,$(SANITIZE)),-O0,-O1)
# Tests that compute little are compiled in half the time with less optimization; under the sanitizers the commands too.
LIGHT := $(foreach t,adapt bench budgets calibration cli commands diagnosis distill draft emulator experiments page rings \
  text tree trust,$(patsubst %.cpp,$(BUILD)/%.o,$(wildcard tests/*/test_$t.cpp)))
$(LIGHT): CXXFLAGS += $(if $(filter 1,$(SANITIZE)),-O0,-O1)
$(if $(filter 1,$(SANITIZE)),$(COMMANDS): CXXFLAGS += -O0)
ON_GPU := $(if $(GPU),$(EMULATED:.o=.cuda.o))
$(ON_GPU): NVCCFLAGS += -Dnanospec=nanospec_cuda

# What several files have instantiated is linked from the first of them: from one that is optimized.
$(BUILD)/tests/run: $(filter-out $(LIGHT),$(TESTS)) $(EMULATED) $(ON_GPU) $(filter $(LIGHT),$(TESTS)) $(COMMANDS)
	$(if $(GPU),$(NVCC) -Wno-deprecated-gpu-targets,$(CXX) $(CXXFLAGS)) $^ -o $@ -lmd

tests: $(BUILD)/tests/run

test:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory -j2 all tests
	@$(if $(NVCC),NANOSPEC_PTXAS="$(BUILD)/nanospec.ptxas $(BUILD)/train_gpt.ptxas") $(BUILD)/tests/run

# ----------------------------------------------------------------------------------------------------------------
# Measuring

bench:
	@$(MAKE) --no-print-directory -j2 $(PROGRAMS) $(if $(GPU),$(ON_CUDA))
	@$(BUILD)/nanospec bench --out $(BUILD)/bench
	@$(if $(GPU),$(BUILD)/nanospec-cuda bench --only gpu --out $(BUILD)/bench/gpu,echo; \
	  echo "The GPU's rows are left out, unmeasured: $(if $(NVCC),nvidia-smi -L names no device,there is no nvcc)")

# The target and the drafters; `sequoia` and `calibrated` want the drafters' accuracy on the target.
experiments:
	@$(MAKE) --no-print-directory deps
	@$(MAKE) --no-print-directory data
	@$(MAKE) --no-print-directory -j2 $(PROGRAMS)
	@$(MAKE) --no-print-directory train-and-experiment

# $(call once,DIR/NAME,MARK,COMMAND): trains what is missing. Weights are written as training goes on: MARK says that
# it has not ended.
once = if [ ! -s $(1).safetensors ] || [ -e $(2) ]; then mkdir -p $(dir $(1)) && touch $(2) && $(3) && rm $(2); fi
M := runs/medium
DRAFTERS := bigram ngram:4 suffix+ngram:4 gpt:runs/small
LEARNED := medusa parallel parallel:$(M)/sequential
TRAIN_PARALLEL = $(BUILD)/train_drafter --parallel $(M) --data $(TEXT) --eval_interval 200

.PHONY: train-medium train-drafters train-and-experiment
train-medium:
	@$(call once,$(M)/model,$(M)/unfinished,$(BUILD)/train_gpt --data $(TEXT) --out $(M) --preset medium \
	  --max_iters 2000 --lr_decay_iters 2000 --dropout 0.1 --stats $(M)/train.json \
	  $$([ -s $(M)/optimizer.safetensors ] && echo --resume))

train-drafters: train-medium
	@$(call once,$(M)/medusa,$(M)/medusa.unfinished,$(BUILD)/train_drafter --medusa $(M) --data $(TEXT) --medusa_root \
	  --medusa_tokens 131072 --eval_interval 250 --stats $(M)/medusa.json)
	@$(call once,$(M)/parallel,$(M)/parallel.unfinished,$(TRAIN_PARALLEL) --stats $(M)/parallel.json)
	@$(call once,$(M)/sequential/parallel,$(M)/sequential/unfinished,$(TRAIN_PARALLEL) --parallel_sequential \
	  --max_iters 800 --out $(M)/sequential --stats $(M)/sequential/parallel.json)

train-and-experiment: train-small train-drafters
	@calibrate() { $(BUILD)/nanospec calibrate --model $(M) --data $(TEXT) --drafter $$1 --temperature $$2 --quiet \
	    >/dev/null || echo "not calibrated: $$1 at temperature $$2"; }; \
	for drafter in $(DRAFTERS); do for temperature in 0 0.4 0.7 1; do calibrate $$drafter $$temperature; done; done; \
	for drafter in $(LEARNED); do for temperature in 0 0.7 1; do calibrate $$drafter $$temperature; done; done
	@$(BUILD)/nanospec experiments --model $(M) --drafter_model runs/small --data $(TEXT) --out $(BUILD)/experiments

# ----------------------------------------------------------------------------------------------------------------

clean:
	rm -rf build/*.o build/*.dep build/*.ptxas build/commands build/study build/training build/tests build/sanitize build/flags \
	  build/bench build/experiments build/nanospec_single.cu build/nanospec build/train_gpt build/train_drafter build/nanospec-cuda build/train_gpt-cuda \
	  build/dump_logits

format:
	clang-format -i $$(git ls-files '*.h' '*.cu' '*.cuh' '*.cpp')

-include $(wildcard $(BUILD)/*.dep $(BUILD)/*/*.dep $(BUILD)/tests/*/*.dep)
