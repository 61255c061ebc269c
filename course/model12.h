// course/model12.h: the weights of the model of `make play` in a file. course/stand_in/12.model has those that decode
// until chapter 12 is written: what `make play` trained with the engine's own regions, and left in build/play.model.
//
// play.sh puts it into the single file, inside the namespace, before the model's sizes are set. The file has, for each
// tensor, a scale, and then its numbers in steps of that scale, a byte each.

inline std::vector<float> given_weights(const Config& config) {
  std::ifstream file("course/stand_in/12.model", std::ios::binary);
  std::vector<float> weights(parameter_count(config));
  for (const TensorSpec& spec : tensor_table(config)) {
    float scale = 0;
    std::vector<int8_t> steps(spec.size);
    file.read(reinterpret_cast<char*>(&scale), sizeof scale);
    file.read(reinterpret_cast<char*>(steps.data()), std::streamsize(steps.size()));
    for (size_t i = 0; i < spec.size; i++) weights[spec.offset + i] = scale * float(steps[i]);
  }
  if (!file) throw std::runtime_error("course/stand_in/12.model is too short");
  return weights;
}

// Writes them to build/play.model; returns them.
inline std::vector<float> kept_weights(const Config& config, std::vector<float> weights) {
  std::ofstream file("build/play.model", std::ios::binary);
  for (const TensorSpec& spec : tensor_table(config)) {
    float most = 0;
    for (size_t i = 0; i < spec.size; i++) most = std::max(most, std::abs(weights[spec.offset + i]));
    const float scale = most > 0 ? most / 127 : 1;
    file.write(reinterpret_cast<const char*>(&scale), sizeof scale);
    for (size_t i = 0; i < spec.size; i++) file.put(char(std::lround(weights[spec.offset + i] / scale)));
  }
  return weights;
}
