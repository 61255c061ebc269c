// study/bench.cpp: measures this machine, and what nanospec makes of it: see bench.h.
#include "study/bench.h"

#include "commands/svg.h"
#include "study/study.h"

namespace nanospec {

std::string busy_line(const std::vector<Evenness>& repeats) {
  const auto worst = std::max_element(repeats.begin(), repeats.end(),
                                      [](const Evenness& a, const Evenness& b) { return a.uneven < b.uneven; });
  if (worst == repeats.end() || worst->uneven <= kUneven) return "";
  return "Something else was busy on this machine: repeats of the same work (" + worst->what + ") lay " +
         percent(worst->uneven, 1) + " apart, more than " + percent(kUneven, 1) +
         ": judge by lowest and highest, or run it again on a quiet machine.\n";
}

// ---------------------------------------------------------------------------------------------------------------
// The bench

std::string sections_help(const Sections& sections) {
  return joined(sections, "\n", [](const Section& one) { return std::string(one.name) + ": " + one.what; });
}

Sections chosen(const Sections& all, const Given& given, const std::string& only) {
  if (given.has("--only") && only.empty()) refuse_usage("no section: --only: name some, or leave it out");
  const std::vector<std::string> words = split_at(only, ',');
  std::vector<std::string> known;
  for (const Section& section : all) known.push_back(section.name);
  for (const std::string& word : words) check_word("section", word, "--only", known);
  Sections found;
  for (const Section& section : all)
    if (words.empty() ? section.by_default : std::count(words.begin(), words.end(), section.name) > 0)
      found.push_back(section);
  return found;
}

void Bench::run(const Sections& sections, double scale) {
  folder = std::make_unique<LockedFolder>(out, "wait for its end, or give another --out");
  folder->make();
  for (const Section& one : sections) all_seconds += one.seconds * scale;
  progress = std::make_unique<Progress>(options.settings.quiet);
  machine = this_machine();
  watch_interrupts();
  for (const Section& one : sections) {
    if (interrupted()) break;
    section = one.name;
    seconds = one.seconds * scale;
    one.run();
    before += seconds;
  }
}

void Bench::conclude() const {
  if (interrupted()) print_out("Stopped early: what is shown above is complete, the rest is missing.\n");
  print_out((quick ? std::string(kQuickRun) + "; " : "") + "all samples and pictures: " + out + "\n");
  print_out(busy_line(evenness), true);
  OrderedJson uneven = OrderedJson::object();
  for (const Evenness& e : evenness) uneven[e.what] = e.uneven;
  write_json("evenness", {{"unevenness", uneven}});
}

bool Bench::show(const std::string& doing, double done) const {
  if (progress->due()) {
    const std::string left = time_left(before + done * seconds, all_seconds, progress->seconds());
    progress->show(section + ": " + doing + (left.empty() ? "" : ", " + left));
  }
  return !interrupted();
}

void Bench::print(const std::string& heading, const std::string& table) {
  progress->clear();
  print_out(heading + "\n" + (quick ? std::string(kQuickRun) + "\n" : "") + "\n" + table + "\n", true);
}

namespace {

OrderedJson rates_json(const Rates& rates) {
  return {{"one_thread", median(rates.one)},
          {"all_threads", median(rates.all)},
          {"one_thread_runs", rates.one},
          {"all_threads_runs", rates.all}};
}

OrderedJson roofline_json(const Roofline& r) {
  OrderedJson json = {{"threads", r.threads}};
  for (Level level : kLevels) {
    json["read_bytes_per_second"][level_name(level)] = rates_json(r.read[int(level)]);
    json["read_bytes_per_second"][level_name(level)]["working_set_bytes"] = r.working_set[int(level)];
  }
  json["flops_per_second"]["fp32"] = rates_json(r.fp32);
  return json;
}

OrderedJson machine_json(const Bench& bench) {
  const Machine& m = bench.machine;
  return {{"cpu", m.cpu},
          {"cores", m.threads},
          {"threads", bench.options.settings.threads},
          {"l2_bytes", m.caches.l2},
          {"l3_bytes", m.caches.l3},
          {"caches_assumed", m.caches.assumed},
          {"simd", m.simd},
          {"compiler", m.compiler},
          {"date", m.date}};
}

}  // namespace

void Bench::write_json(const std::string& name, const OrderedJson& json) const {
  OrderedJson file = {{"machine", machine_json(*this)}};
  if (quick) file["quick"] = kQuickRun;
  if (!roofline.fp32.one.empty()) file["roofline"] = roofline_json(roofline);  // where it was measured
  file.update(json);
  write_file(out + "/" + name + ".json", json_text(file, 1));
}
void Bench::write_svg(const std::string& name, const std::string& svg) const {
  write_file(out + "/" + name + ".svg", quick ? svg_below_each_other({svg_warning(kQuickRun), svg}) : svg);
}

Row middle_and_ends(const std::vector<double>& runs, double scale, int places) {
  Row cells;
  for (double value : {median(runs), lowest(runs), highest(runs)})
    cells.push_back(places < 0 ? thousands(value * scale) : decimals(value * scale, places));
  return cells;
}
Row together(Row cells, const std::vector<Row>& more) {
  for (const Row& part : more) cells.insert(cells.end(), part.begin(), part.end());
  return cells;
}

std::string machine_line(const Bench& bench) {
  const Machine& m = bench.machine;
  return filled("{}, {}, {}, L2 {} each, L3 {}{}; {}; {}", m.cpu, count(bench.options.settings.threads, "thread"),
                m.simd, bytes_text(m.caches.l2), bytes_text(m.caches.l3),
                m.caches.assumed ? " (assumed: the system does not tell)" : "", m.compiler, m.date);
}

// ---------------------------------------------------------------------------------------------------------------
// The command

namespace {

Sections sections_of(Bench& bench) {
  return {
      {"forward", [&] { bench_forward(bench); }, 70, "plain decoding's bytes per second, the cost of rows, prefill"},
      {"decode", [&] { bench_decode(bench); }, 170, "speculation: drafters, shapes and budgets against plain decoding"},
      {"train", [&] { bench_train(bench); }, 25, "training: an update, and one by operation"},
      {"kinds", [&] { bench_kinds(bench); }, 360,
       "speculation on the GGUF file that --model names, by kind of question; only where it is named", false},
      {"batch", [&] { bench_batch(bench); }, 60,
       "many texts side by side, plain and speculating; only where it is named", false},
      {"gpu", [&] { bench_gpu(bench); }, 180, "where there is a GPU: its kernels, decoding and training on it",
       gpu_missing().empty()}};
}

Command describe(Bench& b, std::string& only, bool& alone) {
  b.options.settings.device = "cpu";  // the roofline is the CPU's
  return {
      "nanospec bench",
      "Measures what this machine can do (the roofline), and how near nanospec comes to it: tables on standard "
      "output, every sample and the pictures in a folder. Repeats are paired and their order rotates; a figure is "
      "a median. Everything takes five minutes.",
      "nanospec bench --roofline\n"
      "nanospec bench --model runs/medium  # takes five minutes\n"
      "nanospec bench --only forward,decode --repeat 9 --out build/bench  # takes two minutes\n"
      "nanospec bench --quick --out build/quick\n",
      {heading("What to measure"),
       {"--roofline", "", &alone, "the machine alone"},
       {"--only", "LIST", &only, "the roofline and some of these, with ',' between:\n" + sections_help(sections_of(b))},
       {"--quick", "", &b.quick, "a short version of all: seconds, and figures that prove nothing"},
       {"--repeat", "N", &b.repeats, "how often everything runs, where time allows", from(1, 1000)},
       heading("Text and model"),
       {"--model", "DIR", &b.options.settings.model,
        "the trained model of section decode (runs/medium, else runs/small), or a GGUF file for sections forward "
        "and kinds"},
       {"--data", "FILE", &b.data,
        "the text of whose last tenth prompts are (the one that the model learned, where it is in data/)"},
       {"--seed", "N", &b.options.sampling.seed, "of the texts that are decoded"},
       heading("Machine"),
       {"--threads", "N", &b.options.settings.threads, "CPU threads", threads()},
       heading("Output"),
       {"--out", "DIR", &b.out, "the folder for JSON and SVG files"},
       {"--quiet", "", &b.options.settings.quiet, "no progress"}}};
}

void measure_machine(Bench& bench) {
  bench.roofline =
      measure_roofline(bench.machine, bench.options.settings.threads, bench.quick ? 2 : 21, [&](double done) {
        return bench.show("reading and multiplying", done) || done == 0;  // one run at least: figures beat none
      });
  const Roofline& r = bench.roofline;
  const std::string all = "all " + std::to_string(r.threads);
  TableRows rows = {
      {"limit", "working set", "1 thread", "lowest", "highest", all + " threads", "lowest", "highest", ""}};
  const auto row = [&](const std::string& what, const std::string& set, const Rates& rates, const char* unit) {
    rows.push_back(
        together({what, set}, {middle_and_ends(rates.one, 1e-9, 1), middle_and_ends(rates.all, 1e-9, 1), {unit}}));
    bench.evenness.push_back({what, unevenness(rates.all)});
  };
  for (Level level : kLevels)
    row(std::string("reading ") + level_name(level), bytes_text(r.working_set[int(level)]), r.read[int(level)], "GB/s");
  row("multiply-add fp32", "", r.fp32, "GFLOP/s");
  bench.print("Roofline: " + machine_line(bench),
              format_table(rows, "lrrrrrrrl") + "A multiply-add counts two operations.\n");
  bench.write_json("roofline", OrderedJson::object());
}

}  // namespace

int bench_command(int argc, char** argv) {
  Bench bench;
  std::string only;
  bool alone = false;
  const Given given = parse_flags(describe(bench, only, alone), argc, argv);
  if (given.help) return 0;
  Sections sections = chosen(sections_of(bench), given, only);
  if (alone && !only.empty()) refuse_usage("--roofline is the machine alone: --only: give one of the two");
  if (alone) sections.clear();
  std::string& model = bench.options.settings.model;
  for (const char* usual : {"runs/medium", "runs/small"})
    if (!given.has("--model") && model.empty() && std::filesystem::exists(usual)) model = usual;
  if (!given.has("--data")) bench.data = find_text(model, true);
  for (const auto& [flag, path] : {std::pair("--model", model), std::pair("--data", bench.data)})
    if (given.has(flag) && !std::filesystem::exists(path))
      refuse("there is no such file or folder", printable(path, 300), flag + std::string(": check the path"));
  for (const Section& one : sections)  // a text that does not fit is refused before a folder is made
    if (one.name == std::string("decode") && decode_missing(bench).empty())
      Engine(bench.options.settings).tokenizer().encode(read_file(bench.data), bench.data);
  sections.insert(sections.begin(), {"roofline", [&] { measure_machine(bench); }, 4, "the machine"});
  bench.run(sections);
  alone ? print_out(busy_line(bench.evenness)) : bench.conclude();
  return interrupted() ? kInterruptedStatus : 0;
}

}  // namespace nanospec
