// tests/cuda/ptx/test_opcodes.cpp: each opcode that the witness knows, by rows from the manual, PTX ISA.
//
// A row is a statement, what its operands hold, and what must come out. Registers: %p predicates, %h of 16 bits, %r of
// 32, %d of 64; number 0 is the result, 1, 2 ... hold the row's numbers. x is shared memory of 64 bytes, y a lane's
// own.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "tests/cuda/ptx/machine.h"

namespace {

struct OpcodeRow {
  const char* statement;
  std::vector<uint64_t> from;
  uint64_t to;
};

uint64_t f(float x) { return ptx::to_bits(x); }
uint64_t g(double x) { return ptx::to_bits(x); }
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint64_t kNaN = 0x7fffffff;    // what arithmetic makes
constexpr uint64_t kQuiet = 0x7fc00001;  // another one
constexpr uint64_t kLeast = 0x00000001;  // the least denormal float
constexpr uint64_t kMinus = 0x80000000;  // -0
constexpr uint64_t kAllOnes = ~uint64_t(0);

const OpcodeRow kRows[] = {
    // Integers wrap around.
    {"add.s16 %h0, %h1, %h2", {0x7fff, 1}, 0x8000},
    {"add.s32 %r0, %r1, %r2", {0x7fffffff, 1}, 0x80000000},
    {"add.s64 %d0, %d1, %d2", {0x7fffffffffffffff, 1}, 0x8000000000000000},
    {"add.u64 %d0, %d1, %d2", {kAllOnes, 2}, 1},
    {"sub.s32 %r0, %r1, %r2", {0x80000000, 1}, 0x7fffffff},
    {"sub.s64 %d0, %d1, %d2", {0, 1}, kAllOnes},
    {"mul.lo.s32 %r0, %r1, %r2", {0x10001, 0x10001}, 0x20001},
    {"mul.lo.s64 %d0, %d1, %d2", {kAllOnes, 3}, uint64_t(-3)},
    {"mul.wide.s16 %r0, %h1, %h2", {0xffff, 2}, uint32_t(-2)},
    {"mul.wide.s32 %d0, %r1, %r2", {0xffffffff, 2}, uint64_t(-2)},
    {"mul.wide.u32 %d0, %r1, %r2", {0xffffffff, 2}, 0x1fffffffe},
    {"mad.lo.s32 %r0, %r1, %r2, %r3", {0xffffffff, 5, 7}, 2},
    {"div.s32 %r0, %r1, %r2", {uint32_t(-7), 2}, uint32_t(-3)},
    {"div.s32 %r0, %r1, %r2", {0x80000000, 0xffffffff}, 0x80000000},
    {"div.u32 %r0, %r1, %r2", {0xfffffff9, 2}, 0x7ffffffc},
    {"rem.s32 %r0, %r1, %r2", {uint32_t(-7), 2}, uint32_t(-1)},
    {"rem.s32 %r0, %r1, %r2", {0x80000000, 0xffffffff}, 0},
    {"neg.s32 %r0, %r1", {0x80000000}, 0x80000000},
    {"neg.s32 %r0, %r1", {5}, uint32_t(-5)},
    {"min.s32 %r0, %r1, %r2", {0xffffffff, 1}, 0xffffffff},
    {"min.u64 %d0, %d1, %d2", {kAllOnes, 1}, 1},
    {"max.s32 %r0, %r1, %r2", {0xffffffff, 1}, 1},
    {"max.u32 %r0, %r1, %r2", {0xffffffff, 1}, 0xffffffff},
    {"max.s64 %d0, %d1, %d2", {kAllOnes, 1}, 1},
    {"max.u64 %d0, %d1, %d2", {kAllOnes, 1}, kAllOnes},

    // Floats: to the nearest, ties to even; denormals stay; one NaN.
    {"add.rn.f32 %r0, %r1, %r2", {f(16777216), f(1)}, f(16777216)},
    {"add.rn.f32 %r0, %r1, %r2", {f(16777218), f(1)}, f(16777220)},
    {"add.rn.f32 %r0, %r1, %r2", {kLeast, kLeast}, 2},
    {"add.rn.f32 %r0, %r1, %r2", {kMinus, kMinus}, kMinus},
    {"add.rn.f32 %r0, %r1, %r2", {f(kInf), f(-kInf)}, kNaN},
    {"add.rn.f32 %r0, %r1, %r2", {kQuiet, f(1)}, kNaN},
    {"add.rn.f64 %d0, %d1, %d2", {g(9007199254740992), g(1)}, g(9007199254740992)},
    {"add.rz.f32 %r0, %r1, %r2", {f(16777216), f(-0.25f)}, f(16777215)},
    {"add.rz.f32 %r0, %r1, %r2", {f(16777218), f(1)}, f(16777218)},
    {"add.rz.f32 %r0, %r1, %r2", {f(3e38f), f(3e38f)}, f(3.402823466e38f)},
    {"sub.rn.f32 %r0, %r1, %r2", {f(1), f(0.25f)}, f(0.75f)},
    {"sub.rn.f64 %d0, %d1, %d2", {g(1), g(0.25)}, g(0.75)},
    {"mul.rn.f32 %r0, %r1, %r2", {f(0), f(kInf)}, kNaN},
    {"mul.rn.f32 %r0, %r1, %r2", {f(-0.0f), f(3)}, kMinus},
    {"mul.rn.f64 %d0, %d1, %d2", {g(3), g(0.5)}, g(1.5)},
    {"fma.rn.f32 %r0, %r1, %r2, %r3", {f(1.0f + 0x1p-12f), f(1.0f + 0x1p-12f), f(-1.0f - 0x1p-11f)}, f(0x1p-24f)},
    {"fma.rn.f32 %r0, %r1, %r2, %r3", {f(kInf), f(0), f(1)}, kNaN},
    {"fma.rn.f64 %d0, %d1, %d2, %d3", {g(2), g(3), g(1)}, g(7)},
    {"div.rn.f32 %r0, %r1, %r2", {f(1), f(3)}, 0x3eaaaaab},
    {"div.rn.f32 %r0, %r1, %r2", {f(-1), f(0)}, f(-kInf)},
    {"div.rn.f64 %d0, %d1, %d2", {g(1), g(3)}, 0x3fd5555555555555},
    {"rcp.rn.f32 %r0, %r1", {f(3)}, 0x3eaaaaab},
    {"rcp.rn.f64 %d0, %d1", {g(3)}, 0x3fd5555555555555},
    {"sqrt.rn.f32 %r0, %r1", {f(2)}, 0x3fb504f3},
    {"sqrt.rn.f32 %r0, %r1", {f(-1)}, kNaN},
    {"sqrt.rn.f32 %r0, %r1", {kMinus}, kMinus},
    {"sqrt.rn.f64 %d0, %d1", {g(2)}, 0x3ff6a09e667f3bcd},
    {"neg.f32 %r0, %r1", {f(0)}, kMinus},
    {"copysign.f32 %r0, %r1, %r2", {f(-2), f(3)}, f(-3)},
    {"copysign.f32 %r0, %r1, %r2", {f(0), f(-3)}, f(3)},
    {"max.f32 %r0, %r1, %r2", {kMinus, f(0)}, f(0)},
    {"max.f32 %r0, %r1, %r2", {kQuiet, f(-5)}, f(-5)},
    {"max.f32 %r0, %r1, %r2", {kQuiet, kQuiet}, kNaN},
    {"min.f32 %r0, %r1, %r2", {f(0), kMinus}, kMinus},

    // Bits. What is shifted as far as the type is wide is gone, but for the sign.
    {"and.b16 %h0, %h1, %h2", {0xff0f, 0x0ff0}, 0x0f00},
    {"and.b32 %r0, %r1, %r2", {0xff0f, 0x0ff0}, 0x0f00},
    {"and.b64 %d0, %d1, %d2", {kAllOnes, 0x0ff0}, 0x0ff0},
    {"and.pred %p0, %p1, %p2", {1, 0}, 0},
    {"or.b16 %h0, %h1, %h2", {1, 0x8000}, 0x8001},
    {"or.b32 %r0, %r1, %r2", {1, kMinus}, 0x80000001},
    {"or.b64 %d0, %d1, %d2", {1, 0x8000000000000000}, 0x8000000000000001},
    {"or.pred %p0, %p1, %p2", {1, 0}, 1},
    {"xor.pred %p0, %p1, %p2", {1, 1}, 0},
    {"xor.b16 %h0, %h1, %h2", {3, 5}, 6},
    {"xor.b32 %r0, %r1, %r2", {3, 5}, 6},
    {"xor.b64 %d0, %d1, %d2", {kAllOnes, 1}, kAllOnes - 1},
    {"not.b32 %r0, %r1", {1}, 0xfffffffe},
    {"not.b64 %d0, %d1", {1}, kAllOnes - 1},
    {"not.pred %p0, %p1", {1}, 0},
    {"not.pred %p0, %p1", {0}, 1},
    {"shl.b16 %h0, %h1, %r2", {3, 15}, 0x8000},
    {"shl.b16 %h0, %h1, %r2", {3, 16}, 0},
    {"shl.b32 %r0, %r1, %r2", {3, 31}, kMinus},
    {"shl.b32 %r0, %r1, %r2", {3, 32}, 0},
    {"shl.b64 %d0, %d1, %r2", {3, 63}, 0x8000000000000000},
    {"shl.b64 %d0, %d1, %r2", {3, 64}, 0},
    {"shr.u16 %h0, %h1, %r2", {0x8000, 15}, 1},
    {"shr.s16 %h0, %h1, %r2", {0x8000, 15}, 0xffff},
    {"shr.u32 %r0, %r1, %r2", {kMinus, 31}, 1},
    {"shr.u32 %r0, %r1, %r2", {kMinus, 32}, 0},
    {"shr.s32 %r0, %r1, %r2", {kMinus, 31}, 0xffffffff},
    {"shr.s32 %r0, %r1, %r2", {kMinus, 99}, 0xffffffff},
    {"shr.u64 %d0, %d1, %r2", {kAllOnes, 63}, 1},
    {"shr.u64 %d0, %d1, %r2", {kAllOnes, 64}, 0},
    {"shr.s64 %d0, %d1, %r2", {0x8000000000000000, 64}, kAllOnes},
    {"brev.b32 %r0, %r1", {0x80000002}, 0x40000001},
    {"bfind.shiftamt.u32 %r0, %r1", {1}, 31},
    {"bfind.shiftamt.u32 %r0, %r1", {0}, 0xffffffff},
    {"popc.b32 %r0, %r1", {0x80000005}, 3},
    {"bfi.b32 %r0, %r1, %r2, %r3, %r4", {0xff, 0, 4, 8}, 0xff0},
    {"bfi.b32 %r0, %r1, %r2, %r3, %r4", {0xff, 0x12345678, 28, 8}, 0xf2345678},
    {"bfi.b32 %r0, %r1, %r2, %r3, %r4", {0xff, 0x12345678, 4, 0}, 0x12345678},
    {"bfi.b32 %r0, %r1, %r2, %r3, %r4", {0xff, 0x12345678, 32, 8}, 0x12345678},
    {"dp4a.u32.s32 %r0, %r1, %r2, %r3", {0xff020304, 0xff01807f, 10}, uint32_t(10 - 255 + 2 - 384 + 508)},

    // Conversions: to integers towards zero, and to the nearest one that there is.
    {"cvt.rzi.s32.f32 %r0, %r1", {f(-1.75f)}, uint32_t(-1)},
    {"cvt.rzi.s32.f32 %r0, %r1", {f(3e9f)}, 0x7fffffff},
    {"cvt.rzi.s32.f32 %r0, %r1", {f(-3e9f)}, 0x80000000},
    {"cvt.rzi.s32.f32 %r0, %r1", {kQuiet}, 0},
    {"cvt.rzi.u32.f64 %r0, %d1", {g(4294967295.5)}, 0xffffffff},
    {"cvt.rzi.u32.f64 %r0, %d1", {g(-2)}, 0},
    {"cvt.rzi.f32.f32 %r0, %r1", {f(-2.75f)}, f(-2)},
    {"cvt.rn.f32.s32 %r0, %r1", {0xffffffff}, f(-1)},
    {"cvt.rn.f32.s32 %r0, %r1", {16777217}, f(16777216)},
    {"cvt.rn.f32.u32 %r0, %r1", {0xffffffff}, f(4294967296.0f)},
    {"cvt.rn.f32.f64 %r0, %d1", {g(1.0 + 0x1p-24)}, f(1)},
    {"cvt.rn.f64.s32 %d0, %r1", {0xffffffff}, g(-1)},
    {"cvt.f64.f32 %d0, %r1", {kLeast}, g(0x1p-149)},
    {"cvt.s64.s32 %d0, %r1", {0x80000000}, 0xffffffff80000000},
    {"cvt.u64.u32 %d0, %r1", {0x80000000}, 0x80000000},
    {"cvt.u32.u64 %r0, %d1", {0x123456789abcdef0}, 0x9abcdef0},
    {"cvt.u16.u32 %h0, %r1", {0x12345678}, 0x5678},
    {"cvt.s16.s8 %h0, %h1", {0x180}, 0xff80},
    {"cvt.s32.s8 %r0, %r1", {0x1234567f}, 0x7f},
    {"cvt.s32.s8 %r0, %r1", {0x123456ff}, uint32_t(-1)},
    {"cvt.u32.u16 %r0, %h1", {0xffff}, 0xffff},

    // Registers and predicates.
    {"mov.u16 %h0, %h1", {0xffff}, 0xffff},
    {"mov.u32 %r0, %r1", {7}, 7},
    {"mov.b32 %r0, {%h1, %h2}", {0x1234, 0x5678}, 0x56781234},
    {"mov.f32 %r0, 0f3FC00000", {}, f(1.5f)},
    {"mov.u64 %d0, %d1", {kAllOnes}, kAllOnes},
    {"mov.b64 %d0, {%r1, %r2}", {1, 2}, 0x200000001},
    {"mov.b64 {%r3, %r0}, %d1", {0x200000001}, 2},
    {"mov.f64 %d0, 0d3FF8000000000000", {}, g(1.5)},
    {"mov.pred %p0, %p1", {1}, 1},
    {"mov.u32 %r0, %tid.x", {}, 0},
    {"mov.u32 %r0, %ntid.x", {}, 32},
    {"mov.u32 %r0, %ctaid.y", {}, 0},
    {"mov.u32 %r0, %nctaid.x", {}, 1},
    {"selp.u16 %h0, %h1, %h2, %p3", {1, 2, 0}, 2},
    {"selp.b32 %r0, %r1, %r2, %p3", {1, 2, 1}, 1},
    {"selp.u32 %r0, %r1, -1, %p3", {1, 2, 0}, 0xffffffff},
    {"selp.f32 %r0, %r1, %r2, %p3", {f(1), f(2), 0}, f(2)},
    {"selp.b64 %d0, %d1, %d2, %p3", {kAllOnes, 2, 1}, kAllOnes},
    {"selp.u64 %d0, %d1, %d2, %p3", {1, kAllOnes, 0}, kAllOnes},
    {"selp.f64 %d0, %d1, %d2, %p3", {g(1), g(2), 0}, g(2)},
    {"setp.eq.s16 %p0, %h1, %h2", {0x1ffff, 0xffff}, 1},
    {"setp.ne.s16 %p0, %h1, %h2", {1, 2}, 1},
    {"setp.gt.u16 %p0, %h1, %h2", {0xffff, 1}, 1},
    {"setp.eq.b32 %p0, %r1, %r2", {0x100000001, 1}, 1},
    {"setp.eq.s32 %p0, %r1, %r2", {1, 2}, 0},
    {"setp.ne.s32 %p0, %r1, %r2", {1, 2}, 1},
    {"setp.lt.s32 %p0, %r1, %r2", {0xffffffff, 0}, 1},
    {"setp.le.s32 %p0, %r1, %r2", {1, 1}, 1},
    {"setp.gt.s32 %p0, %r1, %r2", {0, 0xffffffff}, 1},
    {"setp.ge.s32 %p0, %r1, %r2", {1, 2}, 0},
    {"setp.ne.u32 %p0, %r1, %r2", {1, 1}, 0},
    {"setp.lt.u32 %p0, %r1, %r2", {0xffffffff, 0}, 0},
    {"setp.le.u32 %p0, %r1, %r2", {0xffffffff, 0}, 0},
    {"setp.gt.u32 %p0, %r1, %r2", {0xffffffff, 0}, 1},
    {"setp.ge.u32 %p0, %r1, %r2", {0, 0}, 1},
    {"setp.eq.s64 %p0, %d1, %d2", {kAllOnes, kAllOnes}, 1},
    {"setp.ne.s64 %p0, %d1, %d2", {0x100000000, 0}, 1},
    {"setp.lt.s64 %p0, %d1, %d2", {kAllOnes, 0}, 1},
    {"setp.le.s64 %p0, %d1, %d2", {0, kAllOnes}, 0},
    {"setp.gt.s64 %p0, %d1, %d2", {0, kAllOnes}, 1},
    {"setp.gt.u64 %p0, %d1, %d2", {0, kAllOnes}, 0},
    {"setp.eq.f32 %p0, %r1, %r2", {kMinus, 0}, 1},
    {"setp.eq.f32 %p0, %r1, %r2", {kQuiet, kQuiet}, 0},
    {"setp.lt.f32 %p0, %r1, %r2", {kQuiet, f(1)}, 0},
    {"setp.le.f32 %p0, %r1, %r2", {f(1), f(1)}, 1},
    {"setp.gt.f32 %p0, %r1, %r2", {f(1), f(-1)}, 1},
    {"setp.ge.f32 %p0, %r1, %r2", {f(1), kQuiet}, 0},
    {"setp.neu.f32 %p0, %r1, %r2", {kQuiet, f(1)}, 1},
    {"setp.neu.f32 %p0, %r1, %r2", {f(1), f(1)}, 0},
    {"setp.ltu.f32 %p0, %r1, %r2", {kQuiet, f(1)}, 1},
    {"setp.leu.f32 %p0, %r1, %r2", {f(2), f(1)}, 0},
    {"setp.gtu.f32 %p0, %r1, %r2", {f(2), f(1)}, 1},
    {"setp.geu.f32 %p0, %r1, %r2", {f(1), kQuiet}, 1},
    {"setp.num.f32 %p0, %r1, %r2", {f(1), kQuiet}, 0},
    {"setp.nan.f32 %p0, %r1, %r2", {f(1), kQuiet}, 1},
    {"setp.ge.f64 %p0, %d1, %d2", {g(1), g(1)}, 1},
    {"setp.gt.f64 %p0, %d1, %d2", {g(1), g(1)}, 0},
    {"setp.le.f64 %p0, %d1, %d2", {g(2), g(1)}, 0},
    {"setp.lt.f64 %p0, %d1, %d2", {g(-1), g(1)}, 1},
    {"mov.u32 %r0, 1; @%p1 mov.u32 %r0, 2", {1}, 2},
    {"mov.u32 %r0, 1; @!%p1 mov.u32 %r0, 2", {1}, 1},

    // Memory. Signed numbers are widened by their sign.
    {"st.shared.u32 [x], %r1; ld.shared.u8 %h0, [x+1]", {0x12345678}, 0x56},
    {"st.shared.u8 [x+4], %h1; ld.shared.u8 %h0, [x+4]", {0x12ff}, 0xff},
    {"st.shared.f32 [x+4], %r1; ld.shared.f32 %r0, [x+4]", {f(1.5f)}, f(1.5f)},
    {"st.shared.u64 [x+8], %d1; ld.shared.u64 %d0, [x+8]", {kAllOnes}, kAllOnes},
    {"st.shared.f64 [x+8], %d1; ld.shared.f64 %d0, [x+8]", {g(1.5)}, g(1.5)},
    {"st.shared.v2.u32 [x+8], {%r1, %r2}; ld.shared.u32 %r0, [x+12]", {5, 6}, 6},
    {"st.shared.v4.u32 [x+16], {%r1, %r2, %r3, %r4}; ld.shared.v2.u32 {%r1, %r0}, [x+24]", {5, 6, 7, 8}, 8},
    {"st.shared.v4.f32 [x+16], {%r1, %r2, %r3, %r4}; ld.shared.v4.f32 {%r1, _, %r0, %r2}, [x+16]", {5, 6, 7, 8}, 7},
    {"st.shared.f32 [x+16], %r1; mov.u64 %d0, x; cvta.shared.u64 %d0, %d0; ld.v4.f32 {%r0, _, _, _}, [%d0+16]", {5}, 5},
    {"st.local.u32 [y], %r1; ld.local.v4.u8 {_, %h0, _, _}, [y]", {0x12345678}, 0x56},
    {"st.local.u16 [y], %h1; ld.local.u16 %h0, [y]", {0x1234}, 0x1234},
    {"st.local.u8 [y], %h1; ld.local.u8 %h0, [y]", {0x1234}, 0x34},
    {"st.local.u8 [y], %h1; ld.local.s8 %r0, [y]", {0x80}, 0xffffff80},
    {"st.local.u32 [y+4], %r1; ld.local.u32 %r0, [y+4]", {0x12345678}, 0x12345678},
    {"st.local.f32 [y+4], %r1; ld.local.f32 %r0, [y+4]", {f(2)}, f(2)},
    {"ld.global.u8 %h0, [%d5]", {0x80}, 0x80},
    {"ld.global.u16 %h0, [%d5]", {0x8080}, 0x8080},
    {"ld.global.u32 %r0, [%d5+8]", {1, 0xffffffff}, 0xffffffff},
    {"ld.global.s32 %r0, [%d5]", {0xffffffff}, 0xffffffff},
    {"ld.global.f32 %r0, [%d5]", {f(2)}, f(2)},
    {"ld.global.cg.f32 %r0, [%d5]", {f(2)}, f(2)},
    {"ld.global.u64 %d0, [%d5+8]", {1, kAllOnes}, kAllOnes},
    {"ld.global.f64 %d0, [%d5+8]", {1, g(2)}, g(2)},
    {"ld.global.v2.f32 {%r1, %r0}, [%d5]", {0x500000004}, 5},
    {"ld.global.v2.u32 {%r1, %r0}, [%d5]", {0x500000004}, 5},
    {"ld.global.v4.f32 {%r1, %r2, %r0, %r3}, [%d5]", {1, 0x700000006}, 6},
    {"ld.global.v4.u32 {%r1, %r2, %r3, %r0}, [%d5]", {1, 0x700000006}, 7},
    {"ld.global.nc.L1::no_allocate.u32 %r0, [%d5]", {5}, 5},
    {"ld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r0}, [%d5]", {1, 0x700000006}, 7},
    {"st.global.u8 [%d5], %h1; ld.global.u16 %h0, [%d5]", {0xffff}, 0xffff},
    {"st.global.u16 [%d5], %h2; ld.global.u32 %r0, [%d5]", {0xffffffff, 1}, 0xffff0001},
    {"st.global.u32 [%d5], %r2; ld.global.u64 %d0, [%d5]", {kAllOnes, 1}, 0xffffffff00000001},
    {"st.global.f32 [%d5+4], %r2; ld.global.u64 %d0, [%d5]", {1, 1}, 0x100000001},
    {"st.global.u64 [%d5], %d2; ld.global.u64 %d0, [%d5]", {1, kAllOnes}, kAllOnes},
    {"st.global.f64 [%d5], %d2; ld.global.u64 %d0, [%d5]", {1, g(2)}, g(2)},
    {"st.global.v4.f32 [%d5], {%r1, %r2, %r3, %r4}; ld.global.u64 %d0, [%d5+8]", {1, 2, 3, 4}, 0x400000003},
    {"atom.global.add.u32 %r0, [%d5], %r2", {10, 3}, 10},
    {"red.global.add.u32 [%d5], %r2; ld.global.u32 %r0, [%d5]", {10, 1}, 11},
    {"cvta.to.global.u64 %d0, %d1", {12}, 12},
    {"membar.gl; mov.u32 %r0, 1", {}, 1},
    {"prefetch.global.L1 [%d5]; mov.u32 %r0, 1", {}, 1},
    {"cp.async.bulk.prefetch.L2.global [%d5], %r1; mov.u32 %r0, 1", {16}, 1},
    {"mov.u32 %r0, 1; bra $L_end; mov.u32 %r0, 2; $L_end: mov.u32 %r1, 3", {}, 1},
    {"mov.u32 %r0, 1; @%p1 bra $L_end; mov.u32 %r0, 2; $L_end: mov.u32 %r1, 3", {0}, 2},
    {"mov.u32 %r0, 1; bra.uni $L_end; $L_end: mov.u32 %r1, 3", {}, 1},
    {"griddepcontrol.launch_dependents; griddepcontrol.wait; mov.u32 %r0, 1", {}, 1},
    {"cp.async.ca.shared.global [x], [%d5], 16, %r3; cp.async.commit_group; cp.async.wait_group 0; "
     "ld.shared.u64 %d0, [x]",
     {7, 8, 4},
     7},
    {"cp.async.ca.shared.global [x], [%d5], 16, %r3; cp.async.commit_group; cp.async.wait_group 0; "
     "ld.shared.u64 %d0, [x+8]",
     {7, 8, 8},
     0},

    // A warp. One lane is asked here, number 0; the test of the shuffles asks all.
    {"vote.sync.ballot.b32 %r0, %p1, -1", {1}, 1},
    {"bar.warp.sync -1; mov.u32 %r0, 1", {}, 1},
    {"bar.sync 0; mov.u32 %r0, 1", {}, 1},
    {"bar.red.or.pred %p0, 0, %p1", {0}, 0},
    {"bar.red.or.pred %p0, 0, %p1", {1}, 1},
};

// Runs statements as a kernel of some threads over `memory`, which its only parameter, %d5, points to. What is wrong is
// the error's text.
std::string run_statements(const std::string& statements, uint64_t* memory, int threads = 1, int blocks = 1,
                           bool early = false) {
  ptx::Program program(
      ".visible .entry row(\n.param .u64 row_0\n)\n{\n.reg .pred %p<6>; .reg .b16 %h<6>; .reg .b32 %r<32>;\n"
      ".reg .b64 %d<6>;\n.shared .align 16 .b8 x[64];\n.local .align 8 .b8 y[16];\nld.param.u64 %d5, [row_0];\n" +
      statements + ";\nret;\n}\n");
  ptx::Launch launch;
  try {
    launch.kernel = &program.kernel("row");
    launch.grid[0] = uint32_t(blocks), launch.grid[1] = launch.grid[2] = 1;
    launch.threads = threads;
    launch.early = early;
    launch.parameters.resize(sizeof memory);
    memcpy(launch.parameters.data(), &memory, sizeof memory);
    ptx::run(launch);
    return "";
  } catch (const std::exception& error) { return error.what(); }
}

// Device memory of 64 numbers, zeros.
struct Words {
  uint64_t* at = static_cast<uint64_t*>(ptx::allocate(512));
  Words() { memset(at, 0, 512); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  ~Words() { ptx::release(at); }
};

// The row's statement, done by lane 0 of a warp whose other lanes hold zeros.
uint64_t result_of(const OpcodeRow& row) {
  Words words;
  for (size_t i = 0; i < row.from.size(); i++) words.at[i] = row.from[i];
  std::string before = "mov.u32 %r31, %tid.x; setp.ne.s32 %p5, %r31, 0; ";
  for (size_t i = 0; i < 4; i++) {
    const std::string k = std::to_string(i + 1), place = "[%d5+" + std::to_string(8 * i) + "]; ";
    const char bank[] = {'d', 'r', 'h'};
    for (int b = 0; b < 3; b++) {
      const std::string reg = std::string("%") + bank[b] + k;
      before += "@!%p5 ld.global.b" + std::to_string(64 >> b) + " " + reg + ", " + place;
      before += "@%p5 mov.b" + std::to_string(64 >> b) + " " + reg + ", 0; ";
    }
    before += "setp.ne.b32 %p" + k + ", %r" + k + ", 0; ";
  }
  const std::string text = row.statement;
  // Only lane 0 touches memory, but all must come to where they meet.
  const bool meets = text.find("sync") != std::string::npos || text.find("bar.") == 0;
  const bool uses_memory = text.find('[') != std::string::npos;
  const std::string alone = meets && !uses_memory ? "" : "@%p5 ret; ";
  const char bank = text.find("%d0") != std::string::npos && text.find("%r0") == std::string::npos ? 'd'
                    : text.find("%h0") != std::string::npos                                        ? 'h'
                    : text.find("%p0") != std::string::npos                                        ? 'p'
                                                                                                   : 'r';
  std::string after = "; ";
  if (bank == 'p') after += "selp.u32 %r0, 1, 0, %p0; ";
  after += (alone.empty() ? "@%p5 ret; " : "") + std::string("st.global.b64 [%d5+64], 0; st.global.b") +
           (bank == 'd'   ? "64 [%d5+64], %d0"
            : bank == 'h' ? "16 [%d5+64], %h0"
                          : "32 [%d5+64], %r0");
  const std::string wrong = run_statements(before + alone + text + after, words.at, 32);
  if (!wrong.empty()) FAIL_CHECK(wrong);
  return words.at[8];
}

}  // namespace

TEST_CASE("witness: every opcode does what the manual says, at the edges too") {
  for (const OpcodeRow& row : kRows) {
    CAPTURE(row.statement);
    CHECK(result_of(row) == row.to);
  }
}

TEST_CASE("witness: shuffles take from the lane that the manual says") {
  struct {
    const char* kind;
    int b, c;
    int from[4];  // of lanes 0, 1, 15, 31
    bool inside[4];
  } const cases[] = {{"up", 1, 0, {0, 0, 14, 30}, {false, true, true, true}},
                     {"bfly", 16, 31, {16, 17, 31, 15}, {true, true, true, true}},
                     {"idx", 5, 31, {5, 5, 5, 5}, {true, true, true, true}},
                     {"bfly", 8, 0x1807, {0, 1, 7, 23}, {false, false, true, true}}};  // segments of 8 lanes
  for (const auto& one : cases) {
    CAPTURE(one.kind);
    Words words;
    const std::string wrong =
        run_statements("mov.u32 %r1, %tid.x; shfl.sync." + std::string(one.kind) + ".b32 %r2|%p1, %r1, " +
                           std::to_string(one.b) + ", " + std::to_string(one.c) +
                           ", -1; selp.u32 %r3, 1, 0, %p1; mul.wide.u32 %d1, %r1, 8; add.s64 %d1, %d1, %d5; "
                           "st.global.v2.u32 [%d1], {%r2, %r3}",
                       words.at, 32);
    CHECK(wrong == "");
    const int lanes[] = {0, 1, 15, 31};
    for (int i = 0; i < 4; i++) {
      CHECK(int(uint32_t(words.at[lanes[i]])) == one.from[i]);
      CHECK((words.at[lanes[i]] >> 32 != 0) == one.inside[i]);
    }
  }
}

// a of ones, b of ones: each element is c plus sixteen.
TEST_CASE("witness: a tensor core's product, and how each device rounds it") {
  const auto product = [](float c) {
    Words words;
    const std::string bits = std::to_string(f(c));
    const std::string wrong = run_statements(
        "mov.b32 %r1, 0x3f803f80; mov.b32 %r2, " + bits +
            "; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r4, %r5, %r6, %r7}, {%r1, %r1, %r1, %r1}, {%r1, "
            "%r1}, {%r2, %r2, %r2, %r2}; mov.u32 %r8, %tid.x; setp.ne.s32 %p1, %r8, 3; @%p1 ret; st.global.u32 [%d5], "
            "%r6",
        words.at, 32);
    CHECK(wrong == "");
    return ptx::from_bits<float>(words.at[0]);
  };
  const ptx::Rounding before = ptx::settings.rounding;
  for (const auto rounding : {ptx::Rounding::kHopper, ptx::Rounding::kAmpere, ptx::Rounding::kFused}) {
    ptx::settings.rounding = rounding;
    CHECK(product(0) == 16);
    CHECK(product(-0.5f) == 15.5f);
    CHECK(std::isnan(product(NAN)));
  }
  ptx::settings.rounding = ptx::Rounding::kHopper;
  CHECK(product(0x1p25f) == 0x1p25f + 16);
  CHECK(product(0x1p26f) == 0x1p26f);
  ptx::settings.rounding = ptx::Rounding::kAmpere;
  CHECK(product(0x1p24f) == 0x1p24f + 16);
  CHECK(product(0x1p25f) == 0x1p25f);
  ptx::settings.rounding = ptx::Rounding::kFused;
  CHECK(product(0x1p24f) == 0x1p24f);
  ptx::settings.rounding = before;
}

// The fragments: a row of a times a column of b, each in a lane and register of its own.
TEST_CASE("witness: a tensor core's fragments lie where the manual says") {
  for (int i = 0; i < 40; i++) {
    const int row = i * 7 % 16, k = i * 5 % 16, column = i * 3 % 8;
    const auto lane_and_word = [](int major, int minor) {
      return std::pair<int, int>(major % 8 * 4 + minor % 8 / 2, minor % 2);
    };
    const auto [a_lane, a_half] = lane_and_word(row, k);
    const auto [b_lane, b_half] = lane_and_word(column, k);
    const auto [c_lane, c_half] = lane_and_word(row, column);
    const auto number = [](int which) { return std::string(which ? "0x40000000" : "0x4000"); };  // 2, in either half
    std::string text = "mov.u32 %r31, %tid.x; ";
    for (int r = 1; r <= 6; r++) text += "mov.b32 %r" + std::to_string(r) + ", 0; ";
    text += "setp.eq.s32 %p1, %r31, " + std::to_string(a_lane) + "; @%p1 mov.b32 %r" +
            std::to_string(1 + row / 8 + k / 8 * 2) + ", " + number(a_half) + "; ";
    text += "setp.eq.s32 %p1, %r31, " + std::to_string(b_lane) + "; @%p1 mov.b32 %r" + std::to_string(5 + k / 8) +
            ", " + number(b_half) + "; ";
    text +=
        "mov.b32 %r9, 0; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r10, %r11, %r12, %r13}, {%r1, %r2, "
        "%r3, %r4}, {%r5, %r6}, {%r9, %r9, %r9, %r9}; mul.wide.u32 %d1, %r31, 16; add.s64 %d1, %d1, %d5; "
        "st.global.v4.f32 [%d1], {%r10, %r11, %r12, %r13}";
    Words words;
    CHECK(run_statements(text, words.at, 32) == "");
    const float* c = reinterpret_cast<const float*>(words.at);
    for (int j = 0; j < 128; j++) CHECK(c[j] == (j == c_lane * 4 + row / 8 * 2 + c_half ? 4 : 0));
  }
}

TEST_CASE("witness: what is wrong is said") {
  const std::string mine = "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; add.s64 %d2, %d1, %d5; ";
  const std::string lane_0 = "mov.u32 %r1, %tid.x; setp.eq.s32 %p1, %r1, 0; setp.ne.s32 %p2, %r1, 0; ";
  const std::string block_0 = "mov.u32 %r1, %ctaid.x; setp.eq.s32 %p1, %r1, 0; ";
  struct {
    const char* said;
    std::string statements;
    int threads, blocks;
    bool early;
  } const cases[] = {
      {"no row of operations.cpp knows", "sin.approx.f32 %r0, %r1", 1, 1, false},
      {"no row of operations.cpp knows", "add.f32 %r0, %r1, %r2", 1, 1, false},  // ptxas could fuse it with another
      {"no row of operations.cpp knows", "add.rn.ftz.f32 %r0, %r1, %r2", 1, 1, false},
      {"no register %r99", "mov.u32 %r99, 1", 1, 1, false},
      {"not allocated: 4 bytes", "ld.global.u32 %r0, [%d5+512]", 1, 1, false},
      {"not aligned to 8 bytes", "ld.global.u64 %d0, [%d5+4]", 1, 1, false},
      {"outside of its memory of 64 bytes", "ld.shared.u32 %r0, [x+64]", 1, 1, false},
      {"division by zero", "mov.u32 %r1, 0; div.s32 %r0, %r1, %r1", 1, 1, false},
      // Races.
      {"", mine + "st.global.u32 [%d2], %r1", 64, 1, false},
      {"two writes race in device memory", mine + "st.global.u32 [%d5], %r1", 32, 1, false},
      {"two writes race in device memory", block_0 + "st.global.u32 [%d5], %r1", 1, 2, false},
      {"a write and a read race in shared memory", lane_0 + "@%p1 st.shared.u32 [x], %r1; ld.shared.u32 %r2, [x]", 32,
       1, false},
      {"", lane_0 + "@%p1 st.shared.u32 [x], %r1; bar.warp.sync -1; ld.shared.u32 %r2, [x]", 32, 1, false},
      {"a write and a read race in shared memory",  // a shuffle orders no memory
       lane_0 + "@%p1 st.shared.u32 [x], %r1; shfl.sync.idx.b32 %r3, %r1, 0, 31, -1; ld.shared.u32 %r2, [x]", 32, 1,
       false},
      {"a write and a read race in shared memory",  // nor a warp's meeting that of others
       lane_0 + "@%p1 st.shared.u32 [x], %r1; bar.warp.sync -1; ld.shared.u32 %r2, [x]", 64, 1, false},
      {"", lane_0 + "@%p1 st.shared.u32 [x], %r1; bar.sync 0; ld.shared.u32 %r2, [x]", 64, 1, false},
      {"a read and a write race in shared memory", lane_0 + "ld.shared.u32 %r2, [x]; @%p1 st.shared.u32 [x], %r1", 32,
       1, false},
      {"", lane_0 + "ld.shared.u32 %r2, [x]; bar.warp.sync -1; @%p1 st.shared.u32 [x], %r1", 32, 1, false},
      {"ld.global.nc of what this launch wrote", "st.global.u32 [%d5], 7; ld.global.nc.L1::no_allocate.u32 %r0, [%d5]",
       1, 1, false},
      // Two blocks: the second reads what the first wrote, as it was told to.
      {"a write and a read race in device memory",
       block_0 + "@%p1 st.global.u32 [%d5], 7; atom.global.add.u32 %r2, [%d5+64], 1; @!%p1 ld.global.u32 %r3, [%d5]", 1,
       2, false},
      {"",
       block_0 + "@%p1 st.global.u32 [%d5], 7; membar.gl; atom.global.add.u32 %r2, [%d5+64], 1; membar.gl; @!%p1 "
                 "ld.global.u32 %r3, [%d5]",
       1, 2, false},
      {"a write and a read race in device memory",  // the first does not wait for what it tells
       block_0 + "membar.gl; @%p1 st.global.u32 [%d5], 7; atom.global.add.u32 %r2, [%d5+64], 1; membar.gl; @!%p1 "
                 "ld.global.u32 %r3, [%d5]",
       1, 2, false},
      // Meetings.
      {"a barrier that not all threads reach", lane_0 + "@%p1 ret; bar.sync 0", 64, 1, false},
      {"lanes wait for others of their warp", lane_0 + "@%p1 ret; bar.warp.sync -1", 32, 1, false},
      {"a meeting whose mask", "bar.warp.sync 3", 32, 1, false},
      {"a meeting that some lanes pass by", lane_0 + "@%p1 bar.warp.sync -1", 32, 1, false},
      {"less than a whole warp",
       "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r4, %r5, %r6, %r7}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, "
       "{%r2, %r2, %r2, %r2}",
       16, 1, false},
      // Asynchronous copies.
      {"a write and a read race in shared memory", "cp.async.ca.shared.global [x], [%d5], 16; ld.shared.u32 %r0, [x]",
       1, 1, false},
      {"a write and a read race in shared memory",
       "cp.async.ca.shared.global [x], [%d5], 16; cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 %r0, "
       "[x]; cp.async.wait_group 0",
       1, 1, false},
      {"a copy is pending when its thread ends", "cp.async.ca.shared.global [x], [%d5], 16; cp.async.commit_group", 1,
       1, false},
      {"not aligned to 16 bytes", "cp.async.ca.shared.global [x+4], [%d5], 16", 1, 1, false},
      {"a prefetch of 8 bytes", "cp.async.bulk.prefetch.L2.global [%d5], 8", 1, 1, false},
      // Launches that begin early.
      {"a thread that never waited", "mov.u32 %r0, 1", 1, 1, true},
      {"a write before griddepcontrol.wait", "st.global.u32 [%d5], 7; griddepcontrol.wait", 1, 1, true},
      {"", "griddepcontrol.wait; st.global.u32 [%d5], 7", 1, 1, true},
  };
  for (const auto& one : cases) {
    CAPTURE(one.statements);
    CAPTURE(one.said);
    Words words;
    const std::string said = run_statements(one.statements, words.at, one.threads, one.blocks, one.early);
    CAPTURE(said);
    if (one.said[0] == 0) CHECK(said.empty());
    else CHECK(said.find(one.said) != std::string::npos);
  }
}

TEST_CASE("witness: a launch that begins early may not read before it waits what the launch before wrote") {
  Words words;
  CHECK(run_statements("st.global.u32 [%d5], 7", words.at) == "");
  CHECK(run_statements("ld.global.u32 %r0, [%d5+32]; griddepcontrol.wait; ld.global.u32 %r0, [%d5]", words.at, 1, 1,
                       true) == "");
  CHECK(run_statements("ld.global.u32 %r0, [%d5]; griddepcontrol.wait", words.at, 1, 1, true)
            .find("a read before griddepcontrol.wait") != std::string::npos);
  ptx::all_is_seen();
  CHECK(run_statements("ld.global.u32 %r0, [%d5]; griddepcontrol.wait", words.at, 1, 1, true) == "");
}

TEST_CASE("witness: blocks side by side may wait for one another, and lanes go in any order") {
  const ptx::Settings before = ptx::settings;
  for (const auto order :
       {ptx::Order::kLockstep, ptx::Order::kAscending, ptx::Order::kDescending, ptx::Order::kShuffled}) {
    ptx::settings.order = order;
    ptx::settings.together = true;
    Words words;
    // Block 0 waits until block 1 has counted up.
    CHECK(run_statements("mov.u32 %r1, %ctaid.x; setp.ne.s32 %p1, %r1, 0; @%p1 bra $L_tell; $L_wait: "
                         "atom.global.add.u32 %r2, [%d5], 0; setp.eq.s32 %p2, %r2, 0; @%p2 bra $L_wait; st.global.u32 "
                         "[%d5+8], 5; bra $L_end; $L_tell: atom.global.add.u32 %r2, [%d5], 1; $L_end: mov.u32 %r1, 0",
                         words.at, 1, 2) == "");
    CHECK(words.at[1] == 5);
    // Lanes that part join again: each adds its own number, odd ones twice.
    ptx::settings.together = false;
    CHECK(run_statements("mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 1; setp.eq.s32 %p1, %r2, 0; @%p1 bra $L_even; "
                         "atom.global.add.u32 %r3, [%d5+16], %r1; $L_even: atom.global.add.u32 %r3, [%d5+16], %r1; "
                         "bar.warp.sync -1; bar.sync 0",
                         words.at, 64) == "");
    CHECK(words.at[2] == 64 * 63 / 2 + 32 * 32);
  }
  ptx::settings = before;
}

// What nvcc makes of the kernels holds no opcode that has no row above: witness.mk writes the list.
TEST_CASE("witness opcodes: each that nvcc writes has a row") {
  const char* path = std::getenv("NANOSPEC_PTX_OPCODES");
  REQUIRE(path);
  std::ifstream list(path);
  int count = 0;
  for (std::string opcode; std::getline(list, opcode); count++) {
    bool has_row = opcode.compare(0, 4, "mma.") == 0 || opcode.compare(0, 5, "shfl.") == 0 ||
                   opcode.compare(0, 9, "ld.param.") == 0 || opcode == "ret";
    for (const OpcodeRow& row : kRows)
      has_row |= (" " + std::string(row.statement)).find(" " + opcode + " ") != std::string::npos ||
                 (std::string(row.statement) + ";").find(opcode + ";") != std::string::npos;
    CAPTURE(opcode);
    CHECK(has_row);
  }
  CHECK(count > 100);
}
