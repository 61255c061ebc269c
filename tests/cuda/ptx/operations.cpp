// tests/cuda/ptx/operations.cpp: what each opcode does to the lanes of a warp: the table, and what its rows name.
//
// In order: numbers (one function for an operation, for all types that it has); conversions; registers and predicates;
// memory; copies; meetings of a warp; the table. The names and what they mean are those of the manual, PTX ISA.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tests/cuda/ptx/machine.h"

namespace ptx {
namespace {

// ---------------------------------------------------------------------------------------------------------------
// Numbers

// to = F(from ...) in each lane, To and From being the types that it reads its registers as.
template <class F, class To, class... From, size_t... I>
void map_lanes(Warp& warp, const Instruction& it, Mask mask, std::index_sequence<I...>) {
  uint64_t* to = warp.reg(it.to[0]).lane;
  const uint64_t* from[] = {warp.reg(it.from[I]).lane...};
  for_lanes(mask, [&](int lane) { to[lane] = to_bits<To>(F::of(from_bits<From>(from[I][lane])...)); });
}
template <class F, class To, class... From>
void map(Warp& warp, const Instruction& it, Mask mask) {
  map_lanes<F, To, From...>(warp, it, mask, std::index_sequence_for<From...>());
}

// The same where all have one type. N: how many F takes.
template <class F, int N, class T>
constexpr Execute alike() {
  if constexpr (N == 1) return map<F, T, T>;
  else if constexpr (N == 2) return map<F, T, T, T>;
  else return map<F, T, T, T, T>;
}

template <class T>
bool is(Type type) {
  if (type.bytes != int(sizeof(T))) return false;
  if (std::is_floating_point<T>::value) return type.kind == 'f';
  return std::is_signed<T>::value ? type.kind == 's' : type.kind == 'u' || type.kind == 'b';
}
// Sets what F does for the instruction's type, which must be one of these.
template <class F, int N, class... T>
void one_of(Instruction& it) {
  ((is<T>(it.type) ? void(it.execute = alike<F, N, T>()) : void()), ...);
}
template <class F, int N>
void integers(Instruction& it) {
  one_of<F, N, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>(it);
}
template <class F, int N>
void floats(Instruction& it) {
  one_of<F, N, float, double>(it);
}
// A floating-point number's operation says how it rounds: ptxas may join one that does not with another.
template <class F, int N>
void numbers(Instruction& it) {
  integers<F, N>(it);
  if (it.has("rn")) floats<F, N>(it);
}
template <class F, int N>
void bits(Instruction& it) {
  one_of<F, N, uint16_t, uint32_t, uint64_t>(it);
}

// A NaN that arithmetic makes is this one, whatever came in.
template <class T>
T canonical(T x) {
  if constexpr (std::is_same<T, float>::value)
    if (std::isnan(x)) return from_bits<float>(0x7fffffff);
  return x;
}

// Integers wrap around. Op: std::plus<> and its kin.
template <class Op>
struct Arithmetic {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral<T>::value) return T(Op{}(uint64_t(a), uint64_t(b)));
    else return canonical(Op{}(a, b));
  }
};
using Add = Arithmetic<std::plus<>>;
using Subtract = Arithmetic<std::minus<>>;
using Multiply = Arithmetic<std::multiplies<>>;

// The sum rounded towards zero: that of the nearest float, and one step back where it is too far out. What the rounding
// lost is exact (Knuth's two-sum).
struct AddTowardsZero {
  static float of(float a, float b) {
    const float sum = a + b, part = sum - a, lost = (a - (sum - part)) + (b - part);
    if (std::isinf(sum) && std::isfinite(a) && std::isfinite(b))
      return std::copysign(std::numeric_limits<float>::max(), sum);
    return canonical(std::isfinite(sum) && lost != 0 && (lost < 0) != (sum < 0) ? std::nextafter(sum, 0.0f) : sum);
  }
};
struct MultiplyWide {
  template <class T>
  static auto of(T a, T b) {
    using Wide = std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>;
    return Wide(a) * Wide(b);
  }
};
struct MultiplyAdd {
  template <class T>
  static T of(T a, T b, T c) {
    return T(uint64_t(a) * uint64_t(b) + uint64_t(c));
  }
};
struct Fused {
  template <class T>
  static T of(T a, T b, T c) {
    return canonical(std::fma(a, b, c));
  }
};
struct Divide {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral<T>::value) {
      if (b == 0) fault("a division by zero");
      return b == T(-1) ? T(0 - uint64_t(a)) : T(a / b);
    } else {
      return canonical(a / b);
    }
  }
};
struct Remainder {
  template <class T>
  static T of(T a, T b) {
    if (b == 0) fault("a division by zero");
    return b == T(-1) ? T(0) : T(a % b);
  }
};
struct Reciprocal {
  template <class T>
  static T of(T a) {
    return canonical(T(1) / a);
  }
};
struct Root {
  template <class T>
  static T of(T a) {
    return canonical(std::sqrt(a));
  }
};
struct Negative {
  template <class T>
  static T of(T a) {
    if constexpr (std::is_integral<T>::value) return T(0 - uint64_t(a));
    else return -a;
  }
};
// b with the sign of a.
struct CopySign {
  template <class T>
  static T of(T a, T b) {
    return std::copysign(b, a);
  }
};
// Of a number and a NaN the number; -0 is less than +0.
template <class Less>
struct Extreme {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point<T>::value) {
      if (std::isnan(a) || std::isnan(b)) return canonical(std::isnan(a) ? b : a);
      if (a == b) return Less{}(std::signbit(b), std::signbit(a)) ? a : b;
    }
    return Less{}(a, b) ? a : b;
  }
};
using Least = Extreme<std::less<>>;
using Greatest = Extreme<std::greater<>>;

template <class Op>
struct Bitwise {
  template <class T>
  static T of(T a, T b) {
    return T(Op{}(a, b));
  }
};
using And = Bitwise<std::bit_and<>>;
using Or = Bitwise<std::bit_or<>>;
using Xor = Bitwise<std::bit_xor<>>;
struct Not {
  template <class T>
  static T of(T a) {
    return T(~a);
  }
};
struct NotPredicate {
  static uint8_t of(uint8_t a) { return a ^ 1; }
};
// The amount is 32 bits, whatever the type; what is shifted further than the type is wide is gone.
struct ShiftLeft {
  template <class T>
  static T of(T a, uint32_t by) {
    return by < sizeof(T) * 8 ? T(uint64_t(a) << by) : T(0);
  }
};
struct ShiftRight {
  template <class T>
  static T of(T a, uint32_t by) {
    return T(a >> std::min(by, uint32_t(sizeof(T) * 8 - 1)) >> (by >= sizeof(T) * 8 ? 1 : 0));
  }
};
template <class F, class... T>
void shift(Instruction& it) {
  ((is<T>(it.type) ? void(it.execute = map<F, T, T, uint32_t>) : void()), ...);
}

struct Reverse {
  static uint32_t of(uint32_t a) {
    uint32_t reversed = 0;
    for (int i = 0; i < 32; i++) reversed |= (a >> i & 1) << (31 - i);
    return reversed;
  }
};
// How far the highest 1 is from the left; all ones where there is none.
struct FindShift {
  static uint32_t of(uint32_t a) { return a == 0 ? ~uint32_t(0) : uint32_t(__builtin_clz(a)); }
};
struct CountOnes {
  static uint32_t of(uint32_t a) { return uint32_t(__builtin_popcount(a)); }
};
// b with `length` bits of a from bit `begin` on.
struct InsertBits {
  static uint32_t of(uint32_t a, uint32_t b, uint32_t begin, uint32_t length) {
    begin &= 255, length &= 255;
    if (begin >= 32 || length == 0) return b;
    const uint32_t mask = (length >= 32 ? ~uint32_t(0) : (uint32_t(1) << length) - 1) << begin;
    return (b & ~mask) | (a << begin & mask);
  }
};
// Four products of bytes, codes from 0 on by signed ones, and a sum.
struct FourProducts {
  static int32_t of(uint32_t codes, uint32_t x, int32_t sum) {
    for (int i = 0; i < 32; i += 8) sum = Add::of(sum, int32_t(codes >> i & 255) * int8_t(x >> i));
    return sum;
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Conversions

// .rzi, towards zero, to what is an integer; .rn to the nearest. Outside of the type's range the nearest of its numbers
// is the result, and of a NaN 0.
template <class To>
struct Convert {
  template <class From>
  static To of(From x) {
    if constexpr (std::is_integral<To>::value && std::is_floating_point<From>::value) {
      constexpr To least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
      if (std::isnan(x)) return 0;
      if (std::trunc(x) <= From(least)) return least;
      return std::trunc(x) >= From(most) ? most : To(x);
    } else {
      return To(x);
    }
  }
};
struct Truncate {
  static float of(float x) { return std::trunc(x); }
};
template <class To, class... From>
void convert_to(Instruction& it) {
  if (is<To>(it.type)) ((is<From>(it.second) ? void(it.execute = map<Convert<To>, To, From>) : void()), ...);
}
void convert(Instruction& it) {
  const bool from_float = it.second.kind == 'f', to_float = it.type.kind == 'f';
  const bool exact = from_float == to_float && (to_float ? it.type.bytes > it.second.bytes : true);
  if (it.has("rzi")) {
    if (to_float && it.type.bytes == 4 && it.second.bytes == 4) it.execute = map<Truncate, float, float>;
    if (to_float || !from_float) return;
  } else if (exact == it.has("rn") || (from_float && !to_float)) {
    return;
  }
  convert_to<uint16_t, uint16_t, uint32_t, int32_t, uint64_t>(it);
  convert_to<int16_t, int8_t>(it);
  convert_to<uint32_t, uint16_t, uint32_t, uint64_t, int64_t, float, double>(it);
  convert_to<int32_t, int8_t, int16_t, uint16_t, int64_t, float, double>(it);
  convert_to<uint64_t, uint16_t, uint32_t, float, double>(it);
  convert_to<int64_t, int16_t, int32_t, float, double>(it);
  convert_to<float, uint16_t, uint32_t, int32_t, uint64_t, int64_t, double>(it);
  convert_to<double, uint32_t, int32_t, uint64_t, int64_t, float>(it);
}

// ---------------------------------------------------------------------------------------------------------------
// Registers and predicates

void copy_register(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) { warp.reg(it.to[0]).lane[lane] = warp.reg(it.from[0]).lane[lane]; });
}
// Parts of a register, the lowest first: into several, and out of several.
uint64_t part_mask(int bits_of_part) { return (uint64_t(1) << bits_of_part) - 1; }
void unpack(Warp& warp, const Instruction& it, Mask mask) {
  const int each = it.type.bytes * 8 / it.outputs;
  for_lanes(mask, [&](int lane) {
    const uint64_t whole = warp.reg(it.from[0]).lane[lane];
    for (int i = 0; i < it.outputs; i++)
      if (it.to[i] >= 0) warp.reg(it.to[i]).lane[lane] = whole >> (each * i) & part_mask(each);
  });
}
void pack(Warp& warp, const Instruction& it, Mask mask) {
  const int each = it.type.bytes * 8 / it.inputs;
  for_lanes(mask, [&](int lane) {
    uint64_t whole = 0;
    for (int i = 0; i < it.inputs; i++) whole |= (warp.reg(it.from[i]).lane[lane] & part_mask(each)) << (each * i);
    warp.reg(it.to[0]).lane[lane] = whole;
  });
}
void move(Warp& warp, const Instruction& it, Mask mask) {
  (it.outputs > 1 ? unpack : it.inputs > 1 ? pack : copy_register)(warp, it, mask);
}
void select(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const int chosen = warp.reg(it.from[2]).lane[lane] & 1 ? 0 : 1;
    warp.reg(it.to[0]).lane[lane] = warp.reg(it.from[chosen]).lane[lane];
  });
}

// Comparisons of numbers. With a NaN those that end in u are true, and the others are not, but for nan.
const char* const kComparisons[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                    "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
template <class T>
bool compare(int choice, T a, T b) {
  bool unordered = false;
  if constexpr (std::is_floating_point<T>::value) unordered = std::isnan(a) || std::isnan(b);
  if (choice >= 12) return unordered == (choice == 13);
  if (unordered) return choice >= 6;
  switch (choice % 6) {
    case 0:
      return a == b;
    case 1:
      return a != b;
    case 2:
      return a < b;
    case 3:
      return a <= b;
    case 4:
      return a > b;
    default:
      return a >= b;
  }
}
template <class T>
void set_predicate(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const bool holds = compare(it.choice, from_bits<T>(warp.reg(it.from[0]).lane[lane]),
                               from_bits<T>(warp.reg(it.from[1]).lane[lane]));
    warp.reg(it.to[0]).lane[lane] = holds;
  });
}
template <class... T>
void compares(Instruction& it) {
  const auto known = std::find(std::begin(kComparisons), std::end(kComparisons), it.words[1]);
  it.choice = int(known - kComparisons);
  if (it.choice >= (it.type.kind == 'f' ? 14 : 6)) return;
  ((is<T>(it.type) ? void(it.execute = set_predicate<T>) : void()), ...);
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

uint64_t address_of(Warp& warp, const Address& at, int lane) {
  return warp.reg(at.base).lane[lane] + uint64_t(at.offset);
}

void load(Warp& warp, const Instruction& it, Mask mask) {
  const int each = it.type.bytes;
  const Use use = it.has("nc") ? Use::kReadOnce : Use::kRead;
  for_lanes(mask, [&](int lane) {
    const char* there = reach(warp, it, lane, it.space, address_of(warp, it.at[0], lane), each * it.numbers, use);
    for (int i = 0; i < it.numbers; i++) {
      uint64_t value = 0;
      memcpy(&value, there + i * each, size_t(each));
      const int unused = 64 - 8 * each;
      if (it.type.kind == 's') value = uint64_t(int64_t(value << unused) >> unused);
      if (it.to[i] >= 0) warp.reg(it.to[i]).lane[lane] = value;
    }
  });
}
void store(Warp& warp, const Instruction& it, Mask mask) {
  const int each = it.type.bytes;
  for_lanes(mask, [&](int lane) {
    char values[16];
    for (int i = 0; i < it.numbers; i++) memcpy(values + i * each, &warp.reg(it.from[i]).lane[lane], size_t(each));
    const int bytes = each * it.numbers;
    memcpy(reach(warp, it, lane, it.space, address_of(warp, it.at[0], lane), bytes, Use::kWrite, values), values,
           size_t(bytes));
  });
}
void atomic_add(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t at = address_of(warp, it.at[0], lane);
    char* there = reach(warp, it, lane, it.space, at, 4, Use::kAtomic);
    meets_others(warp, lane, at);
    uint32_t value;
    memcpy(&value, there, 4);
    const uint32_t sum = value + uint32_t(warp.reg(it.from[0]).lane[lane]);
    memcpy(there, &sum, 4);
    if (it.outputs) warp.reg(it.to[0]).lane[lane] = value;
  });
}
void memory(Instruction& it) {
  it.space = it.has("global")   ? Space::kGlobal
             : it.has("shared") ? Space::kShared
             : it.has("local")  ? Space::kLocal
             : it.has("param")  ? Space::kParameter
                                : Space::kGeneric;
  it.numbers = it.has("v4") ? 4 : it.has("v2") ? 2 : 1;
  it.execute = it.words[0] == "ld" ? load : store;
}
void atomic(Instruction& it) {
  it.space = Space::kGlobal;
  if (is<uint32_t>(it.type)) it.execute = atomic_add;
}
void fences(Warp& warp, const Instruction&, Mask mask) {
  for_lanes(mask, [&](int lane) { fence(warp, lane); });
}

void to_generic(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) { warp.reg(it.to[0]).lane[lane] = warp.reg(it.from[0]).lane[lane] | kSharedBit; });
}

// Both ask for memory, and may only ask for what is there.
void prefetch(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) {
    if (!is_allocated(address_of(warp, it.at[0], lane), 1))
      fault("a prefetch of what is not allocated, " + place_of(warp, it));
  });
}
void prefetch_piece(Warp& warp, const Instruction& it, Mask mask) {
  counts.pieces++;
  for_lanes(mask, [&](int lane) {
    const uint64_t at = address_of(warp, it.at[0], lane), bytes = uint32_t(warp.reg(it.from[0]).lane[lane]);
    if (at % 16 || bytes % 16 || bytes == 0 || !is_allocated(at, bytes))
      fault("a prefetch of " + std::to_string(bytes) + " bytes that are not allocated, or not multiples of 16, " +
            place_of(warp, it));
  });
}

// ---------------------------------------------------------------------------------------------------------------
// Asynchronous copies, and launches that wait for earlier ones

void finish(Block& block, const Copy& copy) {
  char bytes[16] = {};
  memcpy(bytes, reinterpret_cast<const char*>(copy.from), size_t(copy.bytes));
  memcpy(&block.shared[copy.to], bytes, sizeof bytes);
}
// 16 bytes to shared memory: the first `bytes` from device memory, then zeros. Late copies leave NaNs until the wait.
void start_copy(Warp& warp, const Instruction& it, Mask mask) {
  if (it.choice != 16) fault("a copy of " + std::to_string(it.choice) + " bytes");
  for_lanes(mask, [&](int lane) {
    const uint64_t to = address_of(warp, it.at[0], lane), from = address_of(warp, it.at[1], lane);
    const int bytes = it.inputs ? int(warp.reg(it.from[0]).lane[lane]) : 16;
    if (bytes < 0 || bytes > 16 || to % 16 || from % 16 || to + 16 > warp.block->shared.size())
      fault("a copy that is too long, not aligned to 16 bytes, or outside of shared memory, " + place_of(warp, it));
    if (bytes % 4) fault("a copy of bytes that are no multiple of 4, " + place_of(warp, it));
    for (int i = 0; i < bytes; i += 4) reach(warp, it, lane, Space::kGlobal, from + uint64_t(i), 4, Use::kRead);
    copy_begins(warp, it, lane, to);
    const Copy copy{to, from, bytes, warp.batches[lane]};
    if (settings.late) memset(&warp.block->shared[to], 0xff, 16);
    else finish(*warp.block, copy);
    warp.copies[lane].push_back(copy);
  });
}
void end_batch(Warp& warp, const Instruction&, Mask mask) {
  for_lanes(mask, [&](int lane) { warp.batches[lane]++; });
}
// Until no more than `choice` batches are left.
void wait_for_batches(Warp& warp, const Instruction& it, Mask mask) {
  for_lanes(mask, [&](int lane) {
    std::vector<Copy>& copies = warp.copies[lane];
    size_t done = 0;
    for (; done < copies.size() && copies[done].batch + it.choice < warp.batches[lane]; done++) {
      if (settings.late) finish(*warp.block, copies[done]);
      copy_ends(warp, it, lane, copies[done].to);
    }
    copies.erase(copies.begin(), copies.begin() + ptrdiff_t(done));
  });
}
void wait_for_launches(Warp& warp, const Instruction&, Mask mask) { warp.waited |= mask; }
void nothing(Warp&, const Instruction&, Mask) {}

// ---------------------------------------------------------------------------------------------------------------
// Meetings of a warp

// From which lane each gets its value: the manual's pseudocode. c holds the last lane of a segment and its mask.
void shuffle(Warp& warp, const Instruction& it, Mask mask) {
  const Register value = warp.reg(it.from[0]);
  for_lanes(mask, [&](int lane) {
    const int b = int(warp.reg(it.from[1]).lane[lane] & 31), c = int(warp.reg(it.from[2]).lane[lane]);
    const int segments = c >> 8 & 31, clamp = c & 31;
    const int last = (lane & segments) | (clamp & ~segments), first = lane & segments;
    const int from = it.has("up") ? lane - b : it.has("bfly") ? lane ^ b : first | (b & ~segments);
    const bool inside = it.has("up") ? from >= last : from <= last;
    const int chosen = inside ? from : lane;
    if (!(mask >> chosen & 1))
      found(*warp.block->launch, "a shuffle from a lane that takes no part, " + place_of(warp, it));
    warp.reg(it.to[0]).lane[lane] = uint32_t(value.lane[chosen]);
    if (it.outputs > 1 && it.to[1] >= 0) warp.reg(it.to[1]).lane[lane] = inside;
  });
}
void ballot(Warp& warp, const Instruction& it, Mask mask) {
  Mask votes = 0;
  for_lanes(mask, [&](int lane) { votes |= Mask(warp.reg(it.from[0]).lane[lane] & 1) << lane; });
  for_lanes(mask, [&](int lane) { warp.reg(it.to[0]).lane[lane] = votes; });
}
void sync_lanes(Warp& warp, const Instruction&, Mask) { warp.syncs++; }

// A meeting, and which operand says who takes part.
template <Execute F, int Lanes>
void meeting(Instruction& it) {
  it.kind = Kind::kMeeting;
  it.execute = F;
  it.lanes = Lanes;
}

// ---------------------------------------------------------------------------------------------------------------
// The table

template <Execute F>
void just(Instruction& it) {
  it.execute = F;
}
template <Kind K>
void kind(Instruction& it) {
  it.kind = K;
  it.execute = nothing;
}
template <class F, class To, class... From>
void exactly(Instruction& it) {
  if (is<To>(it.type)) it.execute = map<F, To, From...>;
}
void multiply_wide(Instruction& it) {
  if (is<int16_t>(it.type)) it.execute = map<MultiplyWide, int32_t, int16_t, int16_t>;
  if (is<int32_t>(it.type)) it.execute = map<MultiplyWide, int64_t, int32_t, int32_t>;
  if (is<uint32_t>(it.type)) it.execute = map<MultiplyWide, uint64_t, uint32_t, uint32_t>;
}
void invert(Instruction& it) {
  bits<Not, 1>(it);
  if (it.type.kind == 'p') it.execute = map<NotPredicate, uint8_t, uint8_t>;
}
template <class F>
void logic(Instruction& it) {
  bits<F, 2>(it);
  if (it.type.kind == 'p') it.execute = map<F, uint8_t, uint8_t, uint8_t>;
}
void four_products(Instruction& it) {
  if (is<uint32_t>(it.type) && is<int32_t>(it.second))
    it.execute = map<FourProducts, int32_t, uint32_t, uint32_t, int32_t>;
}
void insert_bits(Instruction& it) {
  if (is<uint32_t>(it.type)) it.execute = map<InsertBits, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
}

// opcode: its first words. also: those that may follow, but for types. shape: understand() says it.
struct Row {
  const char *opcode, *also, *shape;
  void (*bind)(Instruction&);  // sets execute, unless the types are none of its own
};
const Row kTable[] = {
    {"add", "rn", "dss", numbers<Add, 2>},
    {"add.rz", "", "dss", exactly<AddTowardsZero, float, float, float>},
    {"sub", "rn", "dss", numbers<Subtract, 2>},
    {"mul", "rn", "dss",
     [](Instruction& it) {
       if (it.has("rn")) floats<Multiply, 2>(it);
     }},
    {"mul.lo", "", "dss", integers<Multiply, 2>},
    {"mul.wide", "", "dss", multiply_wide},
    {"mad.lo", "", "dsss", integers<MultiplyAdd, 3>},
    {"fma.rn", "", "dsss", floats<Fused, 3>},
    {"div", "rn", "dss", numbers<Divide, 2>},
    {"rem", "", "dss", integers<Remainder, 2>},
    {"rcp.rn", "", "ds", floats<Reciprocal, 1>},
    {"sqrt.rn", "", "ds", floats<Root, 1>},
    {"neg", "", "ds", one_of<Negative, 1, int16_t, int32_t, int64_t, float, double>},
    {"copysign", "", "dss", floats<CopySign, 2>},
    {"min", "", "dss", one_of<Least, 2, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float, double>},
    {"max", "", "dss", one_of<Greatest, 2, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float, double>},
    {"and", "", "dss", logic<And>},
    {"or", "", "dss", logic<Or>},
    {"xor", "", "dss", logic<Xor>},
    {"not", "", "ds", invert},
    {"shl", "", "dss", shift<ShiftLeft, uint16_t, uint32_t, uint64_t>},
    {"shr", "", "dss", shift<ShiftRight, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>},
    {"brev", "", "ds", exactly<Reverse, uint32_t, uint32_t>},
    {"bfind.shiftamt", "", "ds", exactly<FindShift, uint32_t, uint32_t>},
    {"popc", "", "ds", exactly<CountOnes, uint32_t, uint32_t>},
    {"bfi", "", "dssss", insert_bits},
    {"dp4a", "", "dsss", four_products},
    {"cvt", "rn rzi", "ds", convert},
    {"mov", "", "ds", just<move>},
    {"selp", "", "dsss", just<select>},
    {"setp", "eq ne lt le gt ge equ neu ltu leu gtu geu num nan", "dss",
     compares<uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t, float, double>},
    {"cvta.shared", "", "ds", just<to_generic>},
    {"cvta.to.global", "", "ds", just<copy_register>},
    {"ld", "global shared local param nc cg L1::no_allocate v2 v4", "da", memory},
    {"st", "global shared local v2 v4", "as", memory},
    {"atom.global.add", "", "das", atomic},
    {"red.global.add", "", "as", atomic},
    {"membar.gl", "", "", just<fences>},
    {"prefetch.global.L1", "", "a", just<prefetch>},
    {"cp.async.bulk.prefetch.L2.global", "", "as", just<prefetch_piece>},
    {"cp.async.ca.shared.global", "", "aan(s)", just<start_copy>},
    {"cp.async.commit_group", "", "", just<end_batch>},
    {"cp.async.wait_group", "", "n", just<wait_for_batches>},
    {"griddepcontrol.launch_dependents", "", "", just<nothing>},
    {"griddepcontrol.wait", "", "", just<wait_for_launches>},
    {"shfl.sync.up", "", "dssss", meeting<shuffle, 3>},
    {"shfl.sync.bfly", "", "dssss", meeting<shuffle, 3>},
    {"shfl.sync.idx", "", "dssss", meeting<shuffle, 3>},
    {"vote.sync.ballot", "", "dss", meeting<ballot, 1>},
    {"bar.warp.sync", "", "s", meeting<sync_lanes, 0>},
    {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "", "dsss", meeting<multiply_fragments, -1>},
    {"bar.sync", "", "n", kind<Kind::kBarrier>},
    {"bar.red.or", "", "dns", kind<Kind::kBarrier>},
    {"bra", "uni", "l", kind<Kind::kBranch>},
    {"ret", "", "", kind<Kind::kEnd>},
};

bool is_type(const std::string& word) {
  const char* const types = " pred b8 u8 s8 b16 u16 s16 b32 u32 s32 f32 b64 u64 s64 f64 ";
  return strstr(types, (" " + word + " ").c_str()) != nullptr;
}
// Whether a row is of this opcode: its words, then types and words that may follow.
bool is_of(const Row& row, const std::vector<std::string>& words) {
  std::string opcode, also = std::string(" ") + row.also + " ";
  const size_t own = size_t(std::count(row.opcode, row.opcode + strlen(row.opcode), '.')) + 1;
  for (size_t i = 0; i < std::min(own, words.size()); i++) opcode += (i ? "." : "") + words[i];
  return opcode == row.opcode && std::all_of(words.begin() + ptrdiff_t(own), words.end(), [&](const std::string& word) {
           return is_type(word) || also.find(" " + word + " ") != std::string::npos;
         });
}

}  // namespace

const char* understand(Instruction& it) {
  for (const Row& row : kTable) {
    if (!is_of(row, it.words)) continue;
    row.bind(it);
    if (it.execute) return row.shape;
  }
  fault("an opcode that no row of operations.cpp knows");
}

}  // namespace ptx
