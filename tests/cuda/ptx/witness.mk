# tests/cuda/ptx/witness.mk: builds and runs the tests "ptx: ", which run nvcc's PTX without a GPU. `make cuda` calls it
# for the parts that a change of a kernel breaks first, `make prove` for all:
#   make -f tests/cuda/ptx/witness.mk [PARTS="attention decode"]
# NANOSPEC_PTX has words of another order (ascending, descending, shuffled), of copies that are done at once (early), of
# blocks side by side (together), of other devices' rounding (ampere, fused). The last test holds what nvcc wrote to
# the rows of test_opcodes.cpp; build/witness/kernels lists the kernels that ran.
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
$(W)/cuda_%.o: tests/cuda/cuda_%.cu | $(W)
	@echo "  NVCC  $@"
	@$(NVCC) -std=c++17 --fmad=false -x cu -I. -gencode arch=compute_$(COMPUTE),code=compute_$(COMPUTE) --no-compress \
	  -DWITNESS -Dnanospec=nanospec_cuda -Xcompiler -O0,-ffp-contract=off,-fno-math-errno,-march=native,-pthread \
	  -Xcompiler -Wno-unknown-pragmas -MMD -MP -MF $(W)/cuda_$*.dep -c $< -o $@
$(W)/%.o: tests/cuda/ptx/%.cpp | $(W)
	@echo "  CXX  $@"
	@$(CXX) $(HOST) $(if $(findstring test,$*),-O0,-O3) -I$(CUDA)/include -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
$(W)/main.o: tests/main.cpp | $(W)
	@$(CXX) $(HOST) -O0 -MMD -MP -MF $(@:.o=.dep) -c $< -o $@
$(W)/libcublas.so.13: tests/cuda/ptx/cublas.cpp | $(W)
	@$(CXX) $(HOST) -O3 -shared -fPIC $< -o $@
$(W):
	@mkdir -p $@
-include $(wildcard $(W)/*.dep)
.SECONDARY:
.PHONY: ran $(ALL:%=$(W)/%.ran) $(W)/opcodes.ran
