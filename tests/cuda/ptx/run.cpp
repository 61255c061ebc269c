// tests/cuda/ptx/run.cpp: runs a launch: whose turn it is, who waits for whom, and what nobody can wait for.
//
// A warp runs a group of its lanes that stand at one instruction, until that group parts, or must wait. In lockstep the
// group is of the lanes that are furthest behind, so that those which parted join again; in the other orders it is one
// lane alone, as if each had a processor of its own. A launch's result may not depend on the order.
#include <algorithm>
#include <limits>
#include <random>

#include "tests/cuda/ptx/machine.h"

namespace ptx {
namespace {

constexpr long kTurn = 2000;  // instructions of a warp's turn, where blocks run side by side

std::mt19937 chance(1);

// Numbers 0 .. n - 1 in the order of the settings.
std::vector<int> turns(int n) {
  std::vector<int> all(size_t(std::max(n, 0)));
  for (int i = 0; i < n; i++) all[size_t(i)] = settings.order == Order::kDescending ? n - 1 - i : i;
  if (settings.order == Order::kShuffled) std::shuffle(all.begin(), all.end(), chance);
  return all;
}

// ---------------------------------------------------------------------------------------------------------------
// One warp

Mask ready(const Warp& warp) { return warp.live & ~warp.meeting & ~warp.at_barrier; }

// Those of the mask that stand where its `first` stands.
Mask beside(const Warp& warp, Mask mask, int first) {
  Mask there = 0;
  for_lanes(mask, [&](int lane) { there |= Mask(warp.at[lane] == warp.at[first]) << lane; });
  return there;
}

// The lanes that go on next.
Mask group(const Warp& warp) {
  const Mask can = ready(warp);
  if (can == 0) return 0;
  int first = __builtin_ctz(can);
  switch (settings.order) {
    case Order::kLockstep:
      for_lanes(can, [&](int lane) { first = warp.at[lane] < warp.at[first] ? lane : first; });
      return beside(warp, can, first);
    case Order::kDescending:
      return Mask(1) << (31 - __builtin_clz(can));
    case Order::kShuffled: {
      Mask left = can;
      for (int skip = int(chance() % uint32_t(__builtin_popcount(can))); skip > 0; skip--) left &= left - 1;
      return left & (~left + 1);
    }
    default:
      return Mask(1) << first;
  }
}

Mask passing_guard(Warp& warp, const Instruction& it, Mask lanes) {
  if (it.guard < 0) return lanes;
  Mask passing = 0;
  for_lanes(lanes, [&](int lane) {
    const bool holds = (warp.reg(it.guard).lane[lane] & 1) != uint64_t(it.guard_is_not);
    passing |= Mask(holds) << lane;
  });
  return passing;
}

void stand(Warp& warp, Mask lanes, int at) {
  for_lanes(lanes, [&](int lane) { warp.at[lane] = at; });
}

void end(Warp& warp, Mask lanes) {
  Launch& launch = *warp.block->launch;
  for_lanes(lanes, [&](int lane) {
    if (!warp.copies[lane].empty()) found(launch, "a copy is pending when its thread ends: " + launch.kernel->name);
  });
  if (launch.early && (lanes & ~warp.waited))
    found(launch, "launched early, and a thread that never waited: " + launch.kernel->name);
  warp.live &= ~lanes;
}

// Lanes arrive where all of their warp must. The last that comes lets all of them go on.
void arrive(Warp& warp, const Instruction& it, Mask lanes, int at) {
  for_lanes(lanes, [&](int lane) {
    if (it.lanes >= 0 && Mask(warp.reg(it.from[size_t(it.lanes)]).lane[lane]) != warp.all)
      fault("a meeting whose mask is not that of the warp's lanes, " + place_of(warp, it));
  });
  stand(warp, lanes, at);
  warp.meeting |= lanes;
  if (warp.meeting != warp.all) return;
  if (beside(warp, warp.all, 0) != warp.all) fault("a warp's lanes meet in different places, " + place_of(warp, it));
  it.execute(warp, it, warp.all);
  stand(warp, warp.all, at + 1);
  warp.meeting = 0;
}

// Has a group of lanes go on until it parts, waits or ends, or its turn is over. Returns whether there was one.
bool run_group(Warp& warp, long& budget) {
  const std::vector<Instruction>& code = warp.block->launch->kernel->code;
  const Mask lanes = group(warp);
  if (lanes == 0) return false;
  int until = int(code.size());  // where others stand, who then come along
  if (settings.order == Order::kLockstep)
    for_lanes(ready(warp) & ~lanes, [&](int lane) { until = std::min(until, warp.at[lane]); });
  int at = warp.at[__builtin_ctz(lanes)];
  do {
    const Instruction& it = code[size_t(at)];
    const Mask passing = passing_guard(warp, it, lanes);
    budget--;
    counts.instructions += __builtin_popcount(passing);
    if (it.kind == Kind::kPlain) {
      if (passing) it.execute(warp, it, passing);
      at++;
    } else if (it.kind == Kind::kBranch && (passing == 0 || passing == lanes)) {
      at = passing ? it.target : at + 1;
    } else if (it.kind == Kind::kBranch || it.kind == Kind::kEnd) {
      stand(warp, lanes & ~passing, at + 1);
      if (it.kind == Kind::kBranch) stand(warp, passing, it.target);
      else end(warp, passing);
      return true;
    } else {
      if (passing != lanes) fault("a meeting that some lanes pass by, " + place_of(warp, it));
      if (it.kind == Kind::kMeeting) {
        arrive(warp, it, lanes, at);
        if (warp.meeting || lanes != warp.all) return true;
        at++;
      } else {
        stand(warp, lanes, at);
        warp.at_barrier |= lanes;
        return true;
      }
    }
  } while (at < until && budget > 0 && settings.order != Order::kShuffled);
  stand(warp, lanes, at);
  return true;
}

// ---------------------------------------------------------------------------------------------------------------
// One block

// Where threads stand who do not go on.
std::string who_waits(const Block& block) {
  std::string text;
  for (const Warp& warp : block.warps)
    for_lanes(warp.live, [&](int lane) {
      if (text.size() < 200)
        text += " thread " + std::to_string(warp.number * kLanes + lane) + " in line " +
                std::to_string(block.launch->kernel->code[size_t(warp.at[lane])].line);
    });
  return text;
}

// Lets the threads go on who wait at the block's barrier. All of them are there, or it is a fault.
void pass_barrier(Block& block) {
  Launch& launch = *block.launch;
  int at = -1;
  uint64_t any = 0;
  for (Warp& warp : block.warps) {
    if (warp.at_barrier != warp.all)
      fault("a barrier that not all threads reach, " + launch.kernel->name + ": there wait" + who_waits(block));
    for_lanes(warp.all, [&](int lane) {
      if (at >= 0 && warp.at[lane] != at)
        fault("threads at different barriers, " + launch.kernel->name + ":" + who_waits(block));
      at = warp.at[lane];
      const Instruction& it = launch.kernel->code[size_t(at)];
      if (it.choice != 0) fault("a barrier that is not number 0, " + place_of(warp, it));
      if (it.inputs) any |= warp.reg(it.from[0]).lane[lane] & 1;
    });
  }
  const Instruction& it = launch.kernel->code[size_t(at)];
  for (Warp& warp : block.warps) {
    if (it.outputs) for_lanes(warp.all, [&](int lane) { warp.reg(it.to[0]).lane[lane] = any; });
    stand(warp, warp.all, at + 1);
    warp.at_barrier = 0;
  }
  block.barriers++;
}

// Has each warp of the block run as far as it can, or its turn lasts. Returns false when all threads have ended.
bool run_turn(Block& block, long turn) {
  bool ran = false, live = false;
  for (int number : turns(int(block.warps.size()))) {
    long budget = turn;
    while (budget > 0 && run_group(block.warps[size_t(number)], budget)) ran = true;
  }
  for (const Warp& warp : block.warps) live |= warp.live != 0;
  if (ran || !live) return live;
  for (const Warp& warp : block.warps)
    if (warp.meeting)
      fault("lanes wait for others of their warp, who do not come, " + block.launch->kernel->name + ":" +
            who_waits(block));
  pass_barrier(block);
  return true;
}

uint64_t special(const std::string& name, const Block& block, const Warp& warp, int lane) {
  const Launch& launch = *block.launch;
  const int axis = name.back() - 'x';
  if (name == "%laneid") return uint64_t(lane);
  if (name == "%tid.x") return uint64_t(warp.number * kLanes + lane);
  if (name == "%ntid.x") return uint64_t(launch.threads);
  if (name.compare(0, 7, "%ctaid.") == 0) return block.place[axis];
  if (name.compare(0, 8, "%nctaid.") == 0) return launch.grid[axis];
  if (name == "%tid.y" || name == "%tid.z") return 0;
  if (name == "%ntid.y" || name == "%ntid.z") return 1;
  fault("no register " + name);
}

// Makes a block ready, one that has run another time too: what is kept of that no kernel may ask for.
void begin(Block& block, Launch& launch, long number) {
  static uint32_t begun = 0;
  const Kernel& kernel = *launch.kernel;
  block.launch = &launch;
  block.number = int(number);
  block.serial = ++begun;
  block.place[0] = uint32_t(number % launch.grid[0]);
  block.place[1] = uint32_t(number / launch.grid[0] % launch.grid[1]);
  block.place[2] = uint32_t(number / launch.grid[0] / launch.grid[1]);
  block.shared.assign(size_t(kernel.shared_bytes), char(0xff));
  block.cells.resize(size_t(kernel.shared_bytes / kernel.smallest + 1));
  block.warps.resize(size_t((launch.threads + kLanes - 1) / kLanes));
  block.barriers = 0;
  block.learned.clear();
  for (size_t i = 0; i < block.warps.size(); i++) {
    Warp fresh;
    fresh.registers = std::move(block.warps[i].registers);
    Warp& warp = block.warps[i] = std::move(fresh);
    warp.block = &block;
    warp.number = int(i);
    const int lanes = std::min(kLanes, launch.threads - int(i) * kLanes);
    warp.all = warp.live = lanes == kLanes ? kAll : (Mask(1) << lanes) - 1;
    if (!warp.registers) {
      warp.registers.reset(new Register[size_t(kernel.registers)]);
      for (const Value& one : kernel.constants) std::fill_n(warp.reg(one.to).lane, kLanes, one.bits);
    }
    for (const Special& one : kernel.specials)
      for (int lane = 0; lane < kLanes; lane++) warp.reg(one.to).lane[lane] = special(one.name, block, warp, lane);
    warp.local.assign(size_t(kernel.local_bytes) * kLanes, char(0xff));
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------
// One launch

void run(Launch& launch) {
  const long blocks = long(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  if (launch.threads < 1 || launch.threads > 1024 || blocks < 1 || launch.grid[0] > 0x7fffffff ||
      launch.grid[1] > 65535 || launch.grid[2] > 65535 || launch.kernel->shared_bytes > 48 << 10)
    fault("more threads, blocks or shared memory than a launch may have: " + launch.kernel->name);
  if (!launch.early) all_is_seen();
  launch.number = uint32_t(++counts.launches);
  counts.early += launch.early;
  counts.kernels.insert(launch.kernel->name);
  const bool together = launch.together || settings.together;
  std::deque<Block> running;
  for (const int number : turns(int(blocks))) {
    running.emplace_back();
    begin(running.back(), launch, number);
    if (together) continue;
    while (run_turn(running.back(), std::numeric_limits<long>::max())) {}
    running.clear();
  }
  for (bool live = together; live;) {
    live = false;
    for (Block& block : running) live |= run_turn(block, kTurn);
  }
  std::string all;
  int told = 0;
  for (const auto& [what, details] : launch.found)
    if (told++ < 3) all += (all.empty() ? "" : "; ") + what + details;
  if (told > 3) all += "; and " + std::to_string(told - 3) + " more places";
  if (told) fault(all);
}

}  // namespace ptx
