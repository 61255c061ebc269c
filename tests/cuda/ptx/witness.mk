# tests/cuda/ptx/witness.mk: builds and runs the tests "ptx: ", which run nvcc's PTX without a GPU. `make cuda` calls it
# for the parts that a change of a kernel breaks first, `make prove` for all:
#   make -f tests/cuda/ptx/witness.mk [PARTS="attention decode"]
# NANOSPEC_PTX has words of another order (ascending, descending, shuffled), of copies that are done at once (early), of
# blocks side by side (together), of other devices' rounding (ampere, fused). The last test holds what nvcc wrote to
# the rows of test_opcodes.cpp; build/witness/kernels lists the kernels that ran. `programs` runs programs too.
CXX := $(if $(filter default,$(origin CXX)),g++,$(CXX))
NVCC ?= nvcc
W := $(or $(BUILD),build)/witness
ALL := $(patsubst tests/cuda/cuda_%.cu,%,$(wildcard tests/cuda/cuda_*.cu))
PARTS ?= $(ALL)
COMPUTE := 90
INTERPRETER := $(patsubst %,$(W)/%.o,read memory operations mma run)
HOST := -std=c++17 -I. -Wall -Wextra -ffp-contract=off -march=native -pthread
CUDA := $(dir $(shell readlink -f "$$(command -v $(NVCC))"))..

# The tests are one thread each: two of them share a machine.
ran: $(PARTS:%=$(W)/%.ran) $(W)/opcodes.ran
	@cat $(PARTS:%=$(W)/%.kernels) | sort -u >$(W)/kernels
	@echo "witness: $$(wc -l <$(W)/kernels) kernels ran: $(W)/kernels lists them"
$(ALL:%=$(W)/%.ran): $(W)/%.ran: $(W)/run-% $(W)/libcublas.so.13
	@rm -f $(W)/$*.kernels $(W)/$*.opcodes
	@LD_LIBRARY_PATH=$(W) NANOSPEC_PTX_KERNELS=$(W)/$*.kernels NANOSPEC_PTX_OPCODES=$(W)/$*.opcodes \
	  $< -tc='ptx: *' >$(W)/$*.log 2>&1; status=$$?; tail -2 $(W)/$*.log; [ $$status = 0 ] || { cat $(W)/$*.log; exit 1; }
$(W)/opcodes.ran: $(W)/run-opcodes $(PARTS:%=$(W)/%.ran)
	@cat $(PARTS:%=$(W)/%.opcodes) | sort -u >$(W)/opcodes
	@NANOSPEC_PTX_OPCODES=$(W)/opcodes $< -tc='witness*'

$(W)/run-opcodes: $(W)/test_opcodes.o $(INTERPRETER) $(W)/main.o
	@$(CXX) $^ -o $@ -pthread
$(W)/run-%: $(W)/cuda_%.o $(INTERPRETER) $(W)/runtime.o $(W)/main.o
	@$(CXX) $^ -o $@ -pthread -ldl
compile = @echo "  NVCC  $@" && $(NVCC) -std=c++17 --fmad=false -x cu -I. --no-compress \
  -gencode arch=compute_$(COMPUTE),code=compute_$(COMPUTE) -Xcompiler -Wno-unknown-pragmas \
  -Xcompiler $(1),-ffp-contract=off,-fno-math-errno,-march=native,-pthread -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
$(W)/cuda_%.o: tests/cuda/cuda_%.cu | $(W)
	$(call compile,-O0) -DWITNESS -Dnanospec=nanospec_cuda
$(W)/%.o: tests/cuda/ptx/%.cpp | $(W)
	@echo "  CXX  $@"
	@$(CXX) $(HOST) $(if $(findstring test,$*),-O0,-O3) -I$(CUDA)/include -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
$(W)/main.o: tests/main.cpp | $(W)
	@$(CXX) $(HOST) -O0 -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
$(W)/libcublas.so.13: tests/cuda/ptx/cublas.cpp | $(W)
	@$(CXX) $(HOST) -O3 -shared -fPIC $< -o $@
$(W):
	@mkdir -p $@

# The programs: each of their kernels has run, in a test or here. And what they print with nvcc's plain kernels is, byte
# for byte, what g++'s print: the core as one file, which trains and decodes by tree:3x2; `nanospec --kernels plain`.
P := $(or $(BUILD),build)
SMALL := --max_new_tokens 80 --prompt_file $(W)/prompt --model $(W)/article --drafter bigram --shape tree:3x2 --quiet
UNDER := LD_LIBRARY_PATH=$(W) NANOSPEC_PTX_KERNELS=$(W)/programs.kernels
programs: ran $(W)/run-single $(W)/run-nanospec $(W)/held $(W)/single-by-g++
	@rm -rf $(W)/programs.kernels $(W)/article
	@$(W)/single-by-g++ $(P)/nanospec_single.cu 2 >$(W)/single.expected
	@$(UNDER) $(W)/run-single $(P)/nanospec_single.cu 2 >$(W)/single.txt
	@cmp $(W)/single.expected $(W)/single.txt
	@head -c 30 $(P)/nanospec_single.cu >$(W)/prompt
	@$(P)/train_gpt --data $(P)/nanospec_single.cu --out $(W)/article --preset article --quiet
	@$(P)/nanospec generate $(SMALL) --device cpu >$(W)/plain.expected
	@$(UNDER) $(W)/run-nanospec generate $(SMALL) --device cuda --kernels plain >$(W)/plain.txt
	@cmp $(W)/plain.expected $(W)/plain.txt
	@export LC_ALL=C; sed 's/13nanospec_cuda/8nanospec/g' $(W)/kernels $(W)/programs.kernels | sort -u | \
	  comm -23 $(W)/held - >$(W)/missing
	@[ ! -s $(W)/missing ] || { echo "kernels that the programs hold, and that have not run:"; cat $(W)/missing; exit 1; }
	@echo "2 passed, 0 failed, 0 skipped: programs; all $$(wc -l <$(W)/held) kernels ran"
HELD := $(addprefix $(W)/,nanospec.o library.o measured.o train_gpt.o)
$(W)/held: $(HELD)
	@grep -aoh '\.entry [A-Za-z0-9_$$]*' $^ | cut -d' ' -f2 | LC_ALL=C sort -u >$@
$(W)/nanospec.o: nanospec.cu
$(W)/library.o: machine/library.cpp
$(W)/measured.o: study/measured.cu
$(W)/train_gpt.o: train_gpt.cu
$(W)/single.o: $(P)/nanospec_single.cu
$(HELD) $(W)/single.o: | $(W)
	$(call compile,-O1) '-DINSTANTIATE=extern template'
$(W)/run-single: $(W)/single.o $(INTERPRETER) $(W)/runtime.o
	@$(CXX) $^ -o $@ -pthread -ldl
O := $(P)/objects
BY_CXX := $(patsubst %,$(O)/%.o,units/command_line units/commands machine/sampling machine/twins units/drafting units/files)
$(W)/run-nanospec: $(W)/library.o $(W)/nanospec.o $(INTERPRETER) $(W)/runtime.o $(BY_CXX)
	@$(CXX) $^ -o $@ -pthread -ldl -lmd -lpcre2-8 -lunistring -ledit
$(W)/single-by-g++: $(P)/nanospec_single.cu
	@$(CXX) -x c++ -std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno $< -o $@
$(P)/nanospec_single.cu $(BY_CXX): by-cxx ;
by-cxx: | $(W)
	@$(MAKE) -f Makefile single $(P)/nanospec $(P)/train_gpt >$(W)/by-cxx.log

-include $(wildcard $(W)/*.dep)
.SECONDARY:
.PHONY: ran programs by-cxx $(ALL:%=$(W)/%.ran) $(W)/opcodes.ran
