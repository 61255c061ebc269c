// files/safetensors.cpp: the reader and writer that safetensors.h declares, in the same order.
#include "files/safetensors.h"

#include "machine/numbers.h"

namespace nanospec {

size_t dtype_size(const std::string& dtype) {
  return dtype == "F32" || dtype == "I32" ? 4 : dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

void to_floats(const void* numbers, const std::string& dtype, size_t n, float* out) {
  if (dtype == "F32" && n > 0) memcpy(out, numbers, 4 * n);
  const uint8_t* const halves = static_cast<const uint8_t*>(numbers);
  if (dtype == "F16")
    for (size_t i = 0; i < n; i++) out[i] = to_float(load<f16>(halves + 2 * i));
  if (dtype == "BF16")
    for (size_t i = 0; i < n; i++) out[i] = to_float(load<bf16>(halves + 2 * i));
}

// Reads one tensor of the header, and checks it against the `data` bytes that begin at `origin`.
static Tensor parse_tensor(const std::string& name, const Json& entry, size_t origin, size_t data,
                           const std::string& where) {
  constexpr size_t kMostDimensions = 8;
  const auto bad = [&](const std::string& wrong) { refuse("tensor " + printable(name) + " " + wrong, where); };
  const Json &dtype = member(entry, "dtype"), &shape = member(entry, "shape"), &span = member(entry, "data_offsets");
  Tensor tensor;
  tensor.name = name;
  if (dtype.is_string()) tensor.dtype = dtype.get<std::string>();
  const size_t width = dtype_size(tensor.dtype);
  if (!width) bad("has dtype " + shown(dtype) + ", expected \"F32\", \"F16\", \"BF16\" or \"I32\"");

  if (!shape.is_array() || shape.size() > kMostDimensions) bad("has no list of at most 8 sizes as its shape");
  size_t count = 1;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned()) bad("has a shape with " + shown(size) + ", expected whole numbers");
    const uint64_t n = size.get<uint64_t>();
    if (n > data || (n && count > data / n)) bad("has a shape larger than the file");
    count *= n;
    tensor.shape.push_back(int64_t(n));
  }

  if (!span.is_array() || span.size() != 2 || !span[0].is_number_unsigned() || !span[1].is_number_unsigned())
    bad("has no data_offsets [begin, end]");
  const uint64_t begin = span[0].get<uint64_t>(), end = span[1].get<uint64_t>();
  if (begin > end || end > data)
    bad(filled("lies at {} to {}, but the file holds {} bytes of tensors", begin, end, data));
  if ((end - begin) / width != count || (end - begin) % width != 0)
    bad(filled("of shape {} and dtype {} has {} bytes", shown_shape(tensor.shape), tensor.dtype, end - begin));
  if (begin % width != 0) bad(filled("begins at {}, not a multiple of its {} bytes", begin, width));
  tensor.begin = origin + begin;
  tensor.end = origin + end;
  return tensor;
}

// Where the header ends, in a file that begins with these bytes and has that size. Throws std::runtime_error.
static size_t header_end(const std::string& begin, uint64_t size, const std::string& where) {
  constexpr uint64_t kLongestHeader = 100000000;  // the format's own limit
  if (size < 8 || begin.size() < 8) refuse(filled("not a safetensors file: only {} bytes", size), where);
  const uint64_t header_bytes = load<uint64_t>(begin.data());
  if (header_bytes > kLongestHeader || header_bytes > size - 8)
    refuse(filled("not a whole safetensors file: a header of {} bytes in a file of {}", header_bytes, size), where);
  return 8 + size_t(header_bytes);
}

// Reads a file's header. Checks all of it: names are distinct, shapes and offsets agree, there is no gap, no overlap
// and no byte left over. Throws std::runtime_error.
static SafeTensors parse_header(const std::string& bytes, uint64_t size, const std::string& where) {
  const size_t origin = bytes.size(), data = size_t(size) - origin;
  const Json header = parse_json(bytes.substr(8), where);
  if (!header.is_object()) refuse("the header is no JSON object", where);

  SafeTensors file;
  file.header = origin;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") file.tensors.push_back(parse_tensor(name, entry, origin, data, where));
    else
      for (const auto& [key, value] : entry.items()) {
        if (!entry.is_object() || !value.is_string()) refuse("__metadata__ is no map of texts", where);
        file.metadata[key] = value.get<std::string>();
      }
  }
  std::sort(file.tensors.begin(), file.tensors.end(),
            [](const Tensor& a, const Tensor& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  size_t reached = origin;
  for (const Tensor& tensor : file.tensors) {
    file.index.emplace(tensor.name, file.index.size());
    if (tensor.begin != reached)
      refuse(filled("tensor {} begins at {}, expected {} (a gap or an overlap)", printable(tensor.name),
                    tensor.begin - origin, reached - origin),
             where);
    reached = tensor.end;
  }
  if (reached != size) refuse(filled("the tensors take {} bytes, the file holds {}", reached - origin, data), where);
  return file;
}

// A file's hash is that of all its bytes, with zeros in place of the hash's digits.
constexpr const char* kNoDigits = "xxh64:0000000000000000";

// Throws std::runtime_error if the file is not the one that was written. If a hash is found under a key that has none,
// the key was "hash" and is damaged.
static void check_hash(const SafeTensors& file, const std::string& where) {
  const auto said = file.metadata.find("hash");
  bool right = true;
  if (said != file.metadata.end()) {
    std::string header = file.bytes.substr(0, file.header);
    const size_t at = header.find(said->second);
    if (at != std::string::npos) header.replace(at, said->second.size(), kNoDigits);
    right = hash_of({header, std::string_view(file.bytes).substr(file.header)}) == said->second;
  } else
    for (const auto& [key, value] : file.metadata)
      right = right && (key == "model" || key == "tokenizer" || value.find(kHashPrefix) != 0);
  if (!right) refuse("the file is damaged: its bytes are not those that its hash was made of", where);
}

SafeTensors parse_safetensors(std::string bytes, const std::string& where) {
  SafeTensors file = parse_header(bytes.substr(0, header_end(bytes, bytes.size(), where)), bytes.size(), where);
  file.bytes = std::move(bytes);
  check_hash(file, where);
  return file;
}

static SafeTensors read_parts(const std::string& path, bool tensors) {
  const RegularFile regular(path);
  const size_t size = regular.size;
  std::string bytes;
  read_more(regular.file, 8, bytes, path);
  read_more(regular.file, header_end(bytes, size, path) - 8, bytes, path);
  SafeTensors file = parse_header(bytes, size, path);
  if (!tensors) return file;
  check_memory(path, double(size), double(size));
  read_more(regular.file, size - bytes.size(), bytes, path);
  if (bytes.size() != size) refuse("the file became shorter while it was read", path, "try again");
  file.bytes = std::move(bytes);
  check_hash(file, path);
  return file;
}

SafeTensors read_safetensors(const std::string& path) { return read_parts(path, true); }
SafeTensors read_header(const std::string& path) { return read_parts(path, false); }

static size_t bytes_of(const TensorData& tensor) { return numbers_in(tensor.shape) * dtype_size(tensor.dtype); }

// The part of a safetensors file before the data of these tensors. It ends at a multiple of 8 bytes.
static std::string safetensors_header(const std::vector<TensorData>& tensors, const Metadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t end = 0;
  for (const TensorData& tensor : tensors) {
    const size_t begin = end;
    end += bytes_of(tensor);
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

static Pieces pieces_of(const std::string& header, const std::vector<TensorData>& tensors) {
  Pieces pieces = {header};
  for (const TensorData& tensor : tensors) pieces.push_back({static_cast<const char*>(tensor.data), bytes_of(tensor)});
  return pieces;
}

std::string format_safetensors(const std::vector<TensorData>& tensors, const Metadata& metadata) {
  const std::string header = safetensors_header(tensors, metadata);
  std::string bytes;
  for (std::string_view piece : pieces_of(header, tensors)) bytes += piece;
  return bytes;
}

Metadata with_hash(const std::vector<TensorData>& tensors, Metadata metadata) {
  metadata["format"] = "pt";
  metadata["hash"] = kNoDigits;
  const std::string header = safetensors_header(tensors, metadata);
  metadata["hash"] = hash_of(pieces_of(header, tensors));
  return metadata;
}

void write_safetensors(const std::string& path, const std::vector<TensorData>& tensors, const Metadata& metadata) {
  const std::string header = safetensors_header(tensors, with_hash(tensors, metadata));
  write_file(path, pieces_of(header, tensors));
}

void copy_floats(const SafeTensors& file, const Tensor& tensor, float* out, const std::string& where) {
  if (tensor.dtype == "I32") refuse("tensor " + printable(tensor.name) + " has dtype I32, expected floats", where);
  const size_t count = (tensor.end - tensor.begin) / dtype_size(tensor.dtype);
  to_floats(file.bytes.data() + tensor.begin, tensor.dtype, count, out);
  if (!std::all_of(out, out + count, [](float x) { return std::isfinite(x); }))
    refuse("tensor " + printable(tensor.name) + " holds numbers that are not finite", where,
           "train again, with a lower learning rate if it diverged");
}

void check_tensors(const SafeTensors& file, const Expected& expected, const std::string& where) {
  const auto wrong = [&](const std::string& what) { refuse(what, where, "use files of one and the same model"); };
  for (const auto& [name, shape] : expected) {
    const Tensor* const found = file.find(name);
    if (!found) wrong("tensor " + name + " is missing, expected with shape " + shown_shape(shape));
    if (found->shape != shape)
      wrong("tensor " + name + " has shape " + shown_shape(found->shape) + ", expected " + shown_shape(shape));
  }
  for (const Tensor& tensor : file.tensors)
    if (!expected.count(tensor.name))
      wrong(filled("tensor {} of shape {} does not belong to this model", printable(tensor.name),
                   shown_shape(tensor.shape)));
}

std::vector<float> read_tensor(const SafeTensors& file, const std::string& name, const std::vector<int64_t>& shape,
                               const std::string& where) {
  const Tensor* const tensor = file.find(name);
  if (!tensor || tensor->shape != shape) check_tensors(file, {{name, shape}}, where);
  std::vector<float> out((tensor->end - tensor->begin) / dtype_size(tensor->dtype));
  copy_floats(file, *tensor, out.data(), where);
  return out;
}

std::vector<int32_t> read_integers(const SafeTensors& file, const std::string& name, const std::string& where) {
  const Tensor* const tensor = file.find(name);
  if (!tensor) refuse("tensor " + name + " is missing", where);
  if (tensor->dtype != "I32" || tensor->shape.size() != 1)
    refuse("tensor " + name + " has dtype " + tensor->dtype + " and shape " + shown_shape(tensor->shape) +
               ", expected a list of I32",
           where);
  std::vector<int32_t> out(size_t(tensor->shape[0]));
  if (!out.empty()) memcpy(out.data(), file.bytes.data() + tensor->begin, tensor->end - tensor->begin);
  return out;
}

}  // namespace nanospec
