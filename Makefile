# nanospec: `make run` sets everything up, trains, and compares; `make test` proves it; `make help` lists the targets.
#
# Variables: T=tree (make test: only tests whose names begin so), V=1 (show the commands), ARCH=x86-64 (or any -march
# name; default: this machine), CXX=clang++, CXXFLAGS and LDFLAGS (added to the project's own), SANITIZE=1
# (AddressSanitizer and UBSan, in a folder of its own), GPU=1 (make cuda: build the tests too, for a device that is in
# another machine). All cores work, unless -j says how many.

CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
ARCH ?= native
CLANG := $(findstring clang,$(CXX))
# clang would warn of every loop that it could not vectorize, though it may have no reason to.
WARN := -Wall -Wextra $(if $(CLANG),-Wno-pass-failed)
# Up to a gigabyte g++ collects no garbage: that is a tenth of its time. JOBS counts two gigabytes for each.
MEMORY := $(if $(CLANG),,--param ggc-min-heapsize=1000000)
# Compilers prefer vectors of 256 bits where there are 512, for processors whose clock these once slowed.
MACROS := echo | $(CXX) -march=$(ARCH) -dM -E -x c++ - 2>/dev/null
VECTORS := $(shell $(MACROS) | grep -q AVX512F && echo -mprefer-vector-width=512)
# Contraction off: a fused multiply-add is written as one, or the bits would depend on the compiler's mood. Functions
# begin at a cache line, or a loop's speed would depend on what is linked before it.
EXACT := -ffp-contract=off -fno-math-errno -falign-functions=64 -march=$(ARCH) $(VECTORS)
# What computes is optimized whole. What waits for it, or for a person, is not: it compiles in two thirds of the time.
COMPUTES := $(if $(filter 1,$(SANITIZE)),-O1,-O3)
WAITS := $(if $(filter 1,$(SANITIZE)),-O0,-O1)
OPTIMIZE := $(COMPUTES)
BUILD := build$(if $(filter 1,$(SANITIZE)),/sanitize)
# Left out: what AddressSanitizer or a warning finds as well, for a fifth of the compiler's time; in the tests' own files
# what only code of vectors, files and kernels does wrong, for a third; in twins.o what .ci/run draws, for four fifths.
ifeq ($(SANITIZE),1)
SANITIZERS := -DSANITIZED -g1 -fsanitize=address,undefined -fno-sanitize=null,object-size,return,vptr -fno-sanitize-recover=all
TESTS_TRUSTED := -fno-sanitize=alignment,pointer-overflow
$(BUILD)/objects/machine/twins.o: OPTIMIZE := $(COMPUTES) $(TWINS_TRUSTED)
endif
FLAGS = -std=c++17 $(SANITIZERS) $(OPTIMIZE) -I. $(EXACT) $(WARN) $(MEMORY) -pthread
LIBS := -lmd -lpcre2-8 -lunistring -ledit
NVCC := $(shell command -v nvcc)
GPU := $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null | head -1))
# Kernels are compiled for this machine's GPUs, where nvcc knows them; elsewhere, and by `make cuda`, for all from 8.0 on.
HERE := $(if $(GPU),$(if $(filter cuda,$(MAKECMDGOALS)),,$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d .)))
KNOWN := $(if $(HERE),$(shell $(NVCC) --list-gpu-arch | awk -F_ '$$2 >= 80 {print $$2}'))
CAPABILITIES ?= $(or $(sort $(filter $(KNOWN),$(HERE))),80 90)
NVCCFLAGS := -std=c++17 --fmad=false -x cu -I. -Wno-deprecated-gpu-targets -Xptxas -v \
  $(foreach c,$(CAPABILITIES),-gencode arch=compute_$(c),code=[sm_$(c),compute_$(c)]) \
  $(addprefix -Xcompiler ,$(EXACT) $(WARN) $(MEMORY) -Wno-unknown-pragmas -pthread)

# ---------------------------------------- How steps are shown
Q := $(if $(filter 1,$(V)),,@)
MAKEFLAGS += --no-print-directory
# As many compilers at a time as there are cores, and twice as many gigabytes free; the command line's -j goes first.
JOBS := $(shell awk -v n=$$(nproc) '/MemAvailable/{m = int($$2 / 2097152)} END{print m < 1 ? 1 : m < n ? m : n}' /proc/meminfo)
export ARCH BUILD CAPABILITIES CXX GPU JOBS MACROS NVCC
# $(call step,WORD): the line of a step, for instance "  12/31  CXX  build/objects/nanospec.o".
step = $(eval DONE += x)@echo "  $(words $(DONE))$(STEPS)  $(1)  $@" | tee $(BUILD)/step
# $(call build,TARGETS): makes them. A make that makes nothing counts the steps beforehand.
build = +@: >$(BUILD)/step; sh data/alive.sh "cat $(BUILD)/step" $(MAKE) $(if $(Q),-s) \
  $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(JOBS)) STEPS=/$$($(MAKE) -n STEPS=/ $(1) | grep -c '^echo " *[0-9]*/ ') $(1)

.PHONY: all help programs study cuda single deps data run chat drafter bench peers train-drafters experiments \
  tests test documents transcripts prove everywhere arm64 course grade real starter slides clean format
all: ## the programs nanospec, train_gpt, train_drafter and study, into build/; with a GPU those of make cuda too
	@sh machine/found.sh
	$(call build,programs)
help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile; sed -n '/^# Variables/,/^$$/s/^# *//p' Makefile

# ---------------------------------------- Objects
# A unit is sources that one compiler reads in turn, because their headers are most of the work. What many files need is
# compiled once: machine/library.cpp says how.
O := $(BUILD)/objects
unit_command_line := commands/cli.cpp commands/outputs.cpp
unit_commands := $(filter-out $(unit_command_line),$(wildcard commands/*.cpp))
unit_drafting := files/drafters.cpp growth/shapes.cpp drafters/logits.cpp archive/coder.cpp
unit_files := $(filter-out $(unit_drafting),$(wildcard files/*.cpp archive/*.cpp))
unit_study := $(filter-out study/study.cpp study/roofline.cpp,$(wildcard study/*.cpp))
# Tests: a unit is folders with the same headers. Most spend their time in the library and the commands: they are
# not optimized. COMPUTING compute themselves: gradients against differences, sweeps, distributions.
COMPUTING := $(patsubst %,tests/%.cpp,core/test_model core/test_operations core/test_real core/test_sample core/test_sweep \
  $(addprefix drafters/test_,medusa hydra parallel) forest/test_forest rules/test_verify training/test_train_parallel)
unit_tests-computing := $(COMPUTING)
TEST_FOLDERS := archive+files+study+training commands+course core+drafters+growth+machine cuda
$(foreach f,$(TEST_FOLDERS),$(eval unit_tests-$(f) := $(filter-out $(COMPUTING),$(wildcard $(patsubst %,tests/%/*.cpp,$(subst +, ,$(f)))))))
WITNESS := $(filter-out %/runtime.cpp %/cublas.cpp,$(wildcard tests/cuda/ptx/*.cpp)) # what runs nvcc's PTX
unit_tests-cuda += $(WITNESS)
# tests/cuda/cuda_*.cu are compiled for the emulator, and where a GPU is for that too, each under a namespace of its
# own, or the linker would take one for the other. The emulator's objects hold all that they need.
EMULATED := $(wildcard tests/cuda/cuda_*.cu)
unit_tests-emulated := $(filter-out %_portable.cu,$(EMULATED))
ON_GPU := $(if $(GPU),$(EMULATED:%.cu=$(O)/%.cuda.o))
UNITS := command_line commands drafting files study \
  $(patsubst %,tests-%,computing emulated $(TEST_FOLDERS))
units = $(1:%=$(O)/units/%.o)
# What waits for the disk, or for a person.
$(call units,command_line commands files study) $(O)/study/study.o: OPTIMIZE := $(WAITS)
# It reads all levels of memory: under the sanitizers too that is to take a second.
$(O)/study/roofline.o: OPTIMIZE := -O1
# What computes on a CPU is in the library, so nvcc optimizes the other files' code for the host less.
$(O)/%.cuda.o: OPTIMIZE := $(WAITS)
$(O)/machine/library.cuda.o: OPTIMIZE := $(COMPUTES)
$(O)/tests/%.o $(O)/units/tests-%.o: OPTIMIZE := -O0 $(TESTS_TRUSTED)
$(O)/tests/%.o $(O)/units/tests-%.o: MORE := -DDOCTEST_CONFIG_SUPER_FAST_ASSERTS
$(COMPUTING:%.cpp=$(O)/%.o) $(call units,tests-computing): OPTIMIZE := -O1 $(TESTS_TRUSTED)
$(O)/tests/cuda/cuda_%.o $(O)/units/tests-emulated.o: INSTANTIATE :=
$(ON_GPU): OPTIMIZE := $(COMPUTES)
$(ON_GPU): MORE := -Dnanospec=nanospec_cuda
# The page of `nanospec show`, as a string of C++.
$(O)/commands/page.inc: commands/page.html
	@{ printf 'R"page('; cat $<; printf ')page"\n'; } >$@
$(O)/units/commands.o: $(O)/commands/page.inc
$(O)/units/commands.o: MORE := -I$(O)/commands
INSTANTIATE := extern template
$(O)/machine/sampling.o $(O)/machine/twins.o: INSTANTIATE := template
COMPILER = $(if $(filter %.cuda.o,$@),sh cuda/compile.sh $(@:.cuda.o=.ptxas) $(NVCC) $(OPTIMIZE) $(NVCCFLAGS),\
  $(CXX) $(FLAGS) $(CXXFLAGS) -x c++)
define compile
	$(call step,$(if $(filter %.cuda.o,$@),NVCC,CXX))
	$(Q)$(COMPILER) $(if $(INSTANTIATE),'-DINSTANTIATE=$(INSTANTIATE)') $(MORE) -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
endef
# What is compiled depends on the flags, and a unit on the list of its files. $(call keep,FILE,FORMAT,WORDS) writes what is
# new: printf's FORMAT, a line for each word (\043 is #, where make would begin a comment).
keep = $(shell printf '$(2)\n' $(3) | cmp -s - $(1) || printf '$(2)\n' $(3) >$(1))
$(shell mkdir -p $(BUILD)/tests $(O)/units $$(dirname */*.cpp tests/*/*.c* | sort -u | sed 's|^|$(O)/|'))
$(call keep,$(BUILD)/flags,%s,'$(CXX) $(FLAGS) $(WAITS) $(TESTS_TRUSTED) $(TWINS_TRUSTED) $(CXXFLAGS)')
$(call keep,$(BUILD)/flags.cuda,%s,'$(WAITS) $(NVCCFLAGS)')
$(foreach u,$(UNITS),$(call keep,$(O)/units/$(u).cpp,\043include "%s",$(unit_$(u))))
vpath %.cpp $(O)
$(O)/%.o: %.cpp $(BUILD)/flags ; $(compile)
$(O)/%.o: %.cu $(BUILD)/flags ; $(compile)
$(O)/%.cuda.o: %.cpp $(BUILD)/flags.cuda ; $(compile)
$(O)/%.cuda.o: %.cu $(BUILD)/flags.cuda ; $(compile)
-include $(wildcard $(O)/*.dep $(O)/*/*.dep $(O)/tests/*/*.dep)

# ---------------------------------------- Programs
FILES := $(O)/machine/sampling.o $(O)/machine/twins.o $(call units,drafting files)
LIBRARY := $(O)/machine/library.o $(FILES)
COMMANDS := $(call units,command_line commands)
STUDY := $(call units,command_line study) $(O)/study/roofline.o
# What takes longest to compile comes first. train_drafter runs on the CPU: train_gpt and train_gpt-cuda hand over to it.
PROGRAMS := $(addprefix $(BUILD)/,train_drafter train_gpt nanospec study)
ON_CUDA := $(addprefix $(BUILD)/,nanospec-cuda train_gpt-cuda study-cuda)
# For tests/reference: hf_check.py, gguf_check.py, bpe_check.py, pieces_check.py.
DUMPS := $(addprefix $(BUILD)/,dump_logits dump_gguf dump_tokens)
programs: $(PROGRAMS) $(if $(GPU),$(ON_CUDA))
# Of an inline function the linker takes the first: what is optimized stands first, twins.o before all: nothing moves it.
$(BUILD)/nanospec: $(O)/nanospec.o $(LIBRARY) $(COMMANDS)
$(BUILD)/train_gpt: $(O)/train_gpt.o $(LIBRARY) $(call units,command_line)
$(BUILD)/train_drafter: $(O)/training/train_drafter.o $(LIBRARY) $(call units,command_line)
$(BUILD)/study: $(O)/nanospec.o $(O)/study/measured.o $(LIBRARY) $(O)/study/study.o $(STUDY) $(call units,commands)
$(BUILD)/nanospec-cuda: $(addprefix $(O)/,machine/library.cuda.o nanospec.cuda.o) $(COMMANDS) $(FILES)
$(BUILD)/train_gpt-cuda: $(addprefix $(O)/,machine/library.cuda.o train_gpt.cuda.o) $(call units,command_line) $(FILES)
$(BUILD)/study-cuda: $(addprefix $(O)/,machine/library.cuda.o nanospec.cuda.o study/measured.cuda.o study/study.o) $(STUDY) $(call units,commands) $(FILES)
$(DUMPS): $(BUILD)/%: $(O)/tests/reference/%.o $(LIBRARY)
$(PROGRAMS) $(ON_CUDA) $(DUMPS) $(addprefix $(BUILD)/tests/,run run-$(T) run-everywhere):
	$(call step,LINK)
	$(Q)$(if $(filter %.cuda.o,$^),$(NVCC) -Wno-deprecated-gpu-targets,$(CXX) $(FLAGS) $(CXXFLAGS) $(LDFLAGS) $(filter %/twins.o,$^)) $(filter-out $(if $(filter %.cuda.o,$^),,%/twins.o),$^) -o $@ $(LIBS)

study: ## build/study: bench, experiments, exact, diagnose; nanospec bench and the others hand over to it
	$(call build,$(BUILD)/study)
cuda: ## the programs nanospec-cuda and train_gpt-cuda, by nvcc; each kernel's registers and loads held to its comment
	$(if $(NVCC),,$(error make cuda: there is no nvcc on the path: install the CUDA Toolkit))
	$(call build,$(ON_CUDA) $(if $(filter command,$(origin GPU)),tests))
	@sh tests/cuda/budgets.sh $(if $(filter command,$(origin GPU)),carry)
single: $(BUILD)/nanospec_single.cu ## the core as one file, build/nanospec_single.cu; its first line says how to compile it
$(BUILD)/nanospec_single.cu: $(wildcard machine/* *.h *.cuh)
	@sh machine/single.sh >$@.tmp && mv $@.tmp $@ && head -4 $@

# ---------------------------------------- Running and measuring
deps: ## installs the Debian packages that are missing
	@sh data/deps.sh
data: ## gets the training text
	@sh data/alive.sh "echo data: getting the text" sh data/get.sh
run: deps ## gets what is missing, builds, trains the small model, compares plain and speculative decoding
	@$(MAKE) data && sh machine/found.sh
	$(call build,$(BUILD)/train_gpt $(BUILD)/nanospec)
	@sh study/train.sh small && sh data/compare.sh
# So it answers most questions right, and briefly: docs/results.md. With set -m a Ctrl-C is the chat's, not make's too.
CHAT := --model models/SmolLM2-135M-Instruct.Q4_1.gguf --temperature 0 --system "You give short and correct answers."
chat: deps ## gets a real model, SmolLM2-135M-Instruct, where the network allows it; builds; talks with it
	@sh data/get_model.sh
	$(call build,$(BUILD)/nanospec)
	@[ ! -t 0 ] || set -m; $(BUILD)/nanospec chat $(CHAT) $(if $(wildcard models/*.Q4_1/hydra.safetensors),--drafter suffix+hydra); exit $$?
drafter: deps ## lets the model of make chat write texts, and trains heads on them, which make chat then drafts with: an hour
	@sh data/get_model.sh
	$(call build,$(BUILD)/nanospec $(BUILD)/train_drafter)
	@sh study/train.sh heads
bench: ## tables and pictures of speed, into build/bench: five minutes; a GPU takes some more
	$(call build,programs)
	@$(BUILD)/nanospec bench --out $(BUILD)/bench
	@$(if $(GPU),$(BUILD)/nanospec-cuda bench --only gpu --out $(BUILD)/bench/gpu,echo; \
	  echo "The GPU's rows are left out, unmeasured: $(if $(NVCC),nvidia-smi -L names no device,there is no nvcc)")
peers: ## builds llama.cpp into build/peers, once, so that peers.py holds it beside nanospec: minutes to half an hour
	@sh tests/reference/peers.sh
experiments: deps ## the literature's experiments, into build/experiments: 12 minutes, and the training of what is missing
	@$(MAKE) data
	$(call build,$(PROGRAMS))
	@sh study/train.sh small drafters accuracy
	@$(BUILD)/nanospec experiments --model runs/medium --drafter_model runs/small --out $(BUILD)/experiments
train-drafters: ; @sh study/train.sh drafters

# ---------------------------------------- Tests
TESTED := $(LIBRARY) $(COMMANDS) $(STUDY)
$(BUILD)/tests/run: $(TESTED) $(ON_GPU) $(call units,$(filter tests-%,$(UNITS))) \
  $(O)/tests/cuda/cuda_portable.o $(O)/tests/main.o
# T=tree: the files with tests whose names begin so, with commands and programs only where they use them. What commands
# ask of the engine is in nanospec.cu, beside its main(), or is the stand-in of tests/commands/.
CHOSEN := $(if $(T),$(or $(if $(filter emulated%,$(T)),$(EMULATED),$(if $(filter witness%,$(T)),$(WITNESS),$(shell grep -lE 'TEST_CASE."$(T)' tests/*/*.cpp))), \
  $(error no test's name begins with $(T): T=$(T): choose tree, model, shapes, commands, ...)))
WIDE := $(if $(CHOSEN),$(shell grep -lE 'include "(commands|study|training|tests/(command_line|picture|world|parallel_world))' $(CHOSEN)))
$(BUILD)/tests/run-$(T): $(if $(WIDE),$(TESTED) $(O)/tests/commands/stand_in.o,$(LIBRARY)) $(O)/tests/main.o \
  $(patsubst %.cu,$(O)/%.o,$(CHOSEN:%.cpp=$(O)/%.o))
# One text on every machine: the tests that show it, few and small enough for an emulated processor. How near functions
# come to libm's ("stated error") is not asked there: it follows from their bits, which are.
$(BUILD)/tests/run-everywhere: $(patsubst %,$(O)/%.o,machine/library machine/sampling machine/twins drafters/logits archive/coder \
  $(addprefix tests/,main archive/test_coder core/test_golden machine/test_integers machine/test_numbers machine/test_simd))

tests: $(if $(T),$(if $(WIDE),$(PROGRAMS))) $(BUILD)/tests/run$(T:%=-%)
test: deps ## builds and runs the tests, with a tenth of the long sweeps; the last line counts passed, failed, skipped
	$(call build,$(if $(T),,programs) tests)
	@$(BUILD)/tests/run$(if $(T),-$(T) -tc="$(T)*")
documents: data ## runs every command that the documents show, and compares what they say that it prints: three minutes
	$(call build,programs tests)
	@sh tests/documents/run.sh
transcripts: data ## writes what commands print into the documents, as make documents compares it
	$(call build,programs)
	@sh tests/documents/run.sh transcripts
prove: ## the tests with the whole of their sweeps, and the documents' long commands: an hour; with the model of make chat more
	@NANOSPEC_PROVE=1 $(MAKE) test && NANOSPEC_PROVE=1 $(MAKE) documents
	@$(if $(NVCC),sh tests/cuda/ptx/mutants.sh)
everywhere:
	$(call build,$(BUILD)/tests/run-everywhere)
	@$(EMULATOR) $(BUILD)/tests/run-everywhere $(if $(EMULATOR),-tce="*stated error*")
# On Debian: dpkg --add-architecture arm64; apt-get update; apt-get install g++-aarch64-linux-gnu qemu-user libmd-dev:arm64
arm64: ## the golden texts and the tests of numbers for arm64, by Debian's cross compiler, on an emulated processor
	@$(MAKE) everywhere CXX=aarch64-linux-gnu-g++ ARCH=armv8.2-a+dotprod BUILD=build/arm64 \
	  LDFLAGS=-static LIBS=-lmd EMULATOR=qemu-aarch64

# ---------------------------------------- The course, and the rest
course: ## the course, into build/course: a starter for students with chapters and grader; course/README.md is for teachers
grade: ## judges SUBMISSION=folder, or a class, SUBMISSIONS=folder; CHAPTER=5 for one; without a folder the engine itself
course grade real starter slides:
	@sh course/make.sh $@
$(BUILD)/make_course: course/course.cpp course/regions.h course/files.h files/words.h
	@$(CXX) -std=c++17 -O1 $(WARN) -I. $< -o $@

clean: ## removes what was built; data, models, build/venv and build/peers stay
	@rm -rf $(addprefix build/,objects tests witness sanitize flags* step *.sass bench experiments nanospec_single.cu single \
	  nanospec train_gpt train_drafter study nanospec-cuda train_gpt-cuda study-cuda dump_logits dump_gguf dump_tokens \
	  course course.tar.gz make_course reference real results.json slides table unpacked)
format: ## clang-format over all sources
	@clang-format -i $$(git ls-files '*.h' '*.cu' '*.cuh' '*.cpp')
