// train_gpt.cu: the program that trains.
//
// In order: batches; losses; the loop. Its flags, files and figures are in training/train_gpt.h; what it shares with
// the training of drafters is in training/run.h. Everything random is a pure function of (seed, iteration). So a run
// that was stopped and resumed gives the same weights as one that was not, bit for bit, on any number of threads. The
// file knows nothing of decoding.
#include "training/train_gpt.h"

#include <chrono>

#include "training/accumulate.h"

namespace nanospec {
namespace {

// ---------------------------------------------------------------------------------------------------------------
// Batches

// Makes batches of sequences of T tokens: roots whose rows are chains. The target of each row is the token after it.
class Batches {
 public:
  Batches(const std::vector<int>& tokens, const GptOptions& o) : tokens_(tokens), o_(o) {}

  // A batch to train on, or to estimate the loss with. (seed, stream, index) decides where its sequences start.
  Batch random(Stream stream, uint64_t index) const {
    Batch batch;
    const uint64_t places = tokens_.size() - size_t(o_.config.block_size);
    for (int b = 0; b < o_.batch_size; b++)
      add(batch, size_t(random_bits(o_.seed, uint32_t(b), stream, index, 0) % places));
    return batch;
  }
  // Windows number first, first + 1, ... of the whole text, as many as one batch holds.
  Batch windows(int first) const {
    Batch batch;
    for (int i = first; i < std::min(first + o_.batch_size, window_count()); i++)
      add(batch, size_t(i) * o_.config.block_size);
    return batch;
  }
  int window_count() const { return int((tokens_.size() - 1) / size_t(o_.config.block_size)); }

 private:
  void add(Batch& batch, size_t start) const {
    const int T = o_.config.block_size;
    batch.add_chain(tokens_.data() + start, T, batch.roots() * pad64(T), 0);
    batch.target.insert(batch.target.end(), tokens_.begin() + start + 1, tokens_.begin() + start + 1 + T);
  }
  const std::vector<int>& tokens_;
  const GptOptions& o_;
};

// ---------------------------------------------------------------------------------------------------------------
// Losses

// The mean loss of eval_iters batches: an estimate. The batches are always the same.
double estimate(Trainer<float>& trainer, const Batches& batches, const GptOptions& o) {
  double sum = 0;
  for (int i = 0; i < o.eval_iters; i++) sum += trainer.loss(batches.random(kStreamEvaluate, uint64_t(i)));
  return sum / o.eval_iters;
}

// The loss over the whole split, each window once.
double whole_loss(Trainer<float>& trainer, const Batches& batches, const GptOptions& o) {
  double sum = 0;
  Progress progress(o.quiet);
  for (int i = 0; i < batches.window_count(); i += o.batch_size) {
    const Batch batch = batches.windows(i);
    sum += double(trainer.loss(batch)) * batch.roots();
    if (progress.due())
      progress.show("validating  " + time_left(i + o.batch_size, batches.window_count(), progress.seconds()));
  }
  return sum / batches.window_count();
}

// ---------------------------------------------------------------------------------------------------------------
// The loop

// Throws if the trainer cannot have the memory that it needs, before the first array is filled.
void check_room(const GptOptions& o, bool cuda) {
  const int T = o.config.block_size;
  if (double(o.batch_size) * pad64(T) > 1 << 24)
    throw std::runtime_error("a batch of " + std::to_string(o.batch_size) + " times " + std::to_string(T) +
                             " tokens is too large: --batch_size: use a smaller one");
  // Parameters, two moments, two packed forms; gradients, of which the trainer has two.
  const double arrays = 6 + gradients_held(o.gradient_accumulation_steps);
  if (!cuda && arrays * sizeof(float) * double(parameter_count(o.config)) > double(available_bytes()))
    throw std::bad_alloc();
}

int train(int argc, char** argv) {
  GptOptions o;
  if (!read_flags(argc, argv, o)) return 0;
  const bool cuda = choose_cuda(o.device);
  const auto start = std::chrono::steady_clock::now();
  TrainingFolder folder = {o, "train_gpt", o.out, "model.safetensors", "optimizer.safetensors"};
  folder.check();
  const TrainingText text = read_text(o);
  check_names(o, text);
  check_room(o, cuda);
  folder.begin();
  Staged tables(o.out, {bigram_path(""), ngram_path("")});
  save_tables(tables, o, text);  // before the trainer takes its memory

  Pool pool(o.threads, cuda);
  Trainer<float> trainer(o.config, pool);
  int64_t done = 0;
  if (o.resume) done = resume(o, text, tables, trainer);
  else trainer.initialize(o.seed);
  if (!o.quiet) announce(o, text, cuda);

  const Batches training(text.parts.train, o), validation(text.parts.validation, o);
  UpdateLoop run(o, done);
  Accumulation accumulation(trainer, pool, o.gradient_accumulation_steps);
  const auto part = [&](uint64_t number) -> MicroBatch {
    return {training.random(kStreamBatch, number), {o.dropout, o.seed, uint32_t(number), 0}};
  };
  while (run.next()) {
    run.updated(accumulation.step(part, run.update()));
    run.show(run.loss, [&](double each) { return speed_text(o, each); });
    if (!run.checkpoint_due()) continue;
    save(o, text, tables, trainer, run.iteration);
    if (o.quiet) continue;  // the estimates would not be printed
    const double train_loss = estimate(trainer, training, o), val_loss = estimate(trainer, validation, o);
    run.say("train loss " + decimals(train_loss, 4) + ", validation loss " + decimals(val_loss, 4) + " (estimates)");
  }
  if (run.worth_saving()) save(o, text, tables, trainer, run.iteration);
  if (interrupted()) return run.stopped("train_gpt", o.out);

  const double train_loss = estimate(trainer, training, o), val_loss = whole_loss(trainer, validation, o);
  const double seconds = seconds_since(start);
  if (!o.quiet)
    tell(filled("train loss {}, loss over the whole validation split {}, {}; {}\n{}", decimals(train_loss, 4),
                decimals(val_loss, 4), duration(seconds), o.out, next_step(argv[0], o.out, text.begin)));
  if (!o.stats.empty()) write_stats(o, run, train_loss, val_loss, seconds, cuda);
  return 0;
}

}  // namespace
}  // namespace nanospec

int main(int argc, char** argv) { return nanospec::run_program("train_gpt", nanospec::train, argc, argv); }
