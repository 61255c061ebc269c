// files/gguf.cpp: the reader that gguf.h declares, in the same order.
//
// A file begins with "GGUF", a version, how many tensors and how many keys there are; then come the keys with their
// values, then the tensors' names, shapes, types and offsets, then the tensors, each at a multiple of the alignment. A
// text is its length, 8 bytes, and its bytes. All numbers are little-endian.
#include "files/gguf.h"

#include <sys/mman.h>

namespace nanospec {

constexpr const char* kAgain = "get the file again, it may be cut off or damaged";

// ---------------------------------------------------------------------------------------------------------------
// Tensors

// All types that ggml has or had, by number; for messages.
constexpr const char* kTypes[] = {"F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
                                  "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
                                  "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
                                  "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
                                  "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
                                  "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0"};

std::string type_name(GgufType type) {
  const uint32_t number = uint32_t(type);
  return number < std::size(kTypes) ? kTypes[number] : "type number " + std::to_string(number);
}
static std::string readable_names() {  // "F32, F16 ... or Q3_K"
  std::string names;
  for (const Readable& one : kReadable)
    names += (names.empty() ? "" : &one == std::end(kReadable) - 1 ? " or " : ", ") + type_name(one.type);
  return names;
}

// ---------------------------------------------------------------------------------------------------------------
// Metadata

namespace {

// What values of each kind are, in the order of GgufKind.
struct Kind {
  size_t width;  // the least bytes of a value
  std::string_view noun;
  bool is_signed = false;
};
constexpr std::string_view kWhole = "whole number", kFloat = "float", kFlag = "flag", kText = "text", kListed = "list";
constexpr Kind kKinds[] = {{1, kWhole},       {1, kWhole, true}, {2, kWhole}, {2, kWhole, true}, {4, kWhole},
                           {4, kWhole, true}, {4, kFloat},       {1, kFlag},  {8, kText},        {0, kListed},
                           {8, kWhole},       {8, kWhole, true}, {8, kFloat}};
const Kind& kind_of(const GgufValue& value) { return kKinds[uint32_t(value.kind)]; }
bool is(const GgufValue& value, std::string_view noun) { return kind_of(value).noun == noun; }

// Element i of a value of whole numbers; none where an int64_t does not hold it.
std::optional<int64_t> integer_at(const GgufValue& value, uint64_t i) {
  const size_t width = kind_of(value).width;
  uint64_t bits = 0;
  memcpy(&bits, value.data + i * width, width);
  const int unused = 64 - 8 * int(width);  // high bits: shifted out and back, they take the number's sign
  if (kind_of(value).is_signed) return int64_t(bits << unused) >> unused;
  return bits <= uint64_t(INT64_MAX) ? std::optional<int64_t>(int64_t(bits)) : std::nullopt;
}
double float_at(const GgufValue& value) {
  return value.kind == GgufKind::f32 ? double(load<float>(value.data)) : load<double>(value.data);
}
std::string text_at(const uint8_t* at) { return {reinterpret_cast<const char*>(at + 8), size_t(load<uint64_t>(at))}; }

}  // namespace

std::string shown_value(const GgufValue& value) {
  if (value.list) return filled("a list of {} {}{}", value.count, kind_of(value).noun, (value.count == 1 ? "" : "s"));
  if (is(value, kFlag)) return *value.data ? "true" : "false";
  if (is(value, kText)) return "\"" + printable(text_at(value.data)) + "\"";
  if (is(value, kFloat)) {
    char text[32];
    snprintf(text, sizeof text, value.kind == GgufKind::f32 ? "%.9g" : "%.17g", float_at(value));
    return text;
  }
  const std::optional<int64_t> number = integer_at(value, 0);
  return number ? std::to_string(*number) : std::to_string(load<uint64_t>(value.data));
}

[[noreturn]] static void refuse_value(const GgufFile& file, const std::string& key, const std::string& is,
                                      const std::string& expected) {
  file.wrong(printable(key) + " is " + is + ", expected " + expected);
}

// What `read` makes of the value under a key, which must be a list or none, of values that are such ("": any);
// `otherwise` if there is none.
template <class T, class Read>
static T value_of(const GgufFile& file, const std::string& key, const std::optional<T>& otherwise, const char* expected,
                  bool list, std::string_view noun, Read read) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end() && otherwise) return *otherwise;
  if (found == file.metadata.end()) file.wrong("the metadata lack " + printable(key));
  const GgufValue& value = found->second;
  if (value.list != list || (!noun.empty() && !is(value, noun))) refuse_value(file, key, shown_value(value), expected);
  return read(value);
}

static int64_t checked_integer(const GgufFile& file, const std::string& key, const GgufValue& value, uint64_t i,
                               int64_t least, int64_t most) {
  const std::optional<int64_t> number = integer_at(value, i);
  if (!number || *number < least || *number > most)
    refuse_value(file, key + (value.list ? filled(", element {},", i + 1) : ""),
                 shown_value({value.kind, false, 1, value.data + i * kind_of(value).width}),
                 filled("{} to {}", least, most));
  return *number;
}

std::string GgufFile::text(const std::string& key, const Otherwise<std::string>& otherwise) const {
  return value_of(*this, key, otherwise, "a text", false, kText, [](auto& value) { return text_at(value.data); });
}
int64_t GgufFile::integer(const std::string& key, int64_t least, int64_t most,
                          const Otherwise<int64_t>& otherwise) const {
  return value_of(*this, key, otherwise, "a whole number", false, kWhole,
                  [&](auto& value) { return checked_integer(*this, key, value, 0, least, most); });
}
// All elements of a value of floats.
static std::vector<double> finite_floats(const GgufFile& file, const std::string& key, const GgufValue& value) {
  std::vector<double> all(value.count);
  for (uint64_t i = 0; i < value.count; i++) {
    all[i] = float_at({value.kind, false, 1, value.data + i * kind_of(value).width});
    if (!std::isfinite(all[i])) refuse_value(file, key, std::to_string(all[i]), "a finite number");
  }
  return all;
}
double GgufFile::number(const std::string& key, const Otherwise<double>& otherwise) const {
  const auto found = metadata.find(key);
  if (found != metadata.end() && is(found->second, kWhole) && !found->second.list)
    return double(integer(key, INT64_MIN, INT64_MAX));
  return value_of(*this, key, otherwise, "a float", false, kFloat,
                  [&](auto& value) { return finite_floats(*this, key, value)[0]; });
}
std::vector<double> GgufFile::numbers(const std::string& key) const {
  return value_of(*this, key, Otherwise<std::vector<double>>(), "a list of floats", true, kFloat,
                  [&](auto& value) { return finite_floats(*this, key, value); });
}
bool GgufFile::flag(const std::string& key, const Otherwise<bool>& otherwise) const {
  return value_of(*this, key, otherwise, "true or false", false, kFlag, [](auto& value) { return *value.data != 0; });
}
std::vector<std::string> GgufFile::texts(const std::string& key) const {
  return value_of(*this, key, Otherwise<std::vector<std::string>>(), "a list of texts", true, kText, [](auto& value) {
    std::vector<std::string> all;
    all.reserve(value.count);
    for (const uint8_t* at = value.data; all.size() < value.count; at += 8 + all.back().size())
      all.push_back(text_at(at));
    return all;
  });
}
GgufFile::Integers GgufFile::integers(const std::string& key, int64_t least, int64_t most,
                                      const Otherwise<Integers>& otherwise) const {
  return value_of(*this, key, otherwise, "a list of whole numbers", true, kWhole, [&](auto& value) {
    Integers all(value.count);
    for (uint64_t i = 0; i < value.count; i++) all[i] = checked_integer(*this, key, value, i, least, most);
    return all;
  });
}
uint64_t GgufFile::length(const std::string& key) const {
  return value_of(*this, key, Otherwise<uint64_t>(0), "a list", true, "", [](auto& value) { return value.count; });
}

const GgufTensor& GgufFile::tensor(const std::string& name) const {
  const GgufTensor* found = find(name);
  if (!found) wrong("tensor " + printable(name) + " is missing");
  return *found;
}
void GgufFile::release() const {
  if (mapped) madvise(const_cast<uint8_t*>(bytes.get()), size, MADV_DONTNEED);
}

// ---------------------------------------------------------------------------------------------------------------
// The file

namespace {

// Reads a file from its beginning on, and never past its end: take() throws where too few bytes are left. `what` says
// for whom they are.
struct Cursor {
  const GgufFile& file;
  size_t at = 0;

  size_t left() const { return file.size - at; }
  const uint8_t* take(uint64_t count, size_t width, const std::string& what) {
    if (count > left() / width)
      file.wrong(filled("{} has a length of {}, more than the {} bytes that are left", what, count, left()), kAgain);
    const uint8_t* taken = file.bytes.get() + at;
    at += size_t(count) * width;
    return taken;
  }
  template <class T>
  T number(const std::string& what) {
    if (left() < sizeof(T)) file.wrong("the file ends within " + what, kAgain);
    return load<T>(take(sizeof(T), 1, what));
  }
  std::string text(const std::string& what, size_t most) {
    const uint64_t length = number<uint64_t>(what);
    const uint8_t* taken = take(length, 1, what);
    if (length > most) file.wrong(filled("{} has {} bytes, at most {}", what, length, most));
    return {reinterpret_cast<const char*>(taken), size_t(length)};
  }
  // How many of something the file says that it has, each of at least so many bytes.
  void expect(uint64_t count, size_t least, const char* what) const {
    if (count > left() / least)
      file.wrong(filled("the file says that it has {} {}, more than its {} bytes hold", count, what, file.size),
                 kAgain);
  }
};

GgufValue read_value(Cursor& cursor, const std::string& what) {
  const auto read_kind = [&] { return GgufKind(cursor.number<uint32_t>(what)); };
  const GgufKind kind = read_kind();
  GgufValue value = {kind, kind == GgufKind::list, 1, nullptr};
  if (value.list) {
    value.kind = read_kind();
    value.count = cursor.number<uint64_t>(what);
    if (value.kind == GgufKind::list) cursor.file.wrong(what + " is a list of lists");
  }
  if (size_t(value.kind) >= std::size(kKinds))
    cursor.file.wrong(filled("{} has type number {}, unknown", what, uint32_t(value.kind)));
  const size_t begin = cursor.at;
  value.data = cursor.take(value.count, kind_of(value).width, what);
  if (is(value, kText)) {  // as many lengths have room; now each with its text
    cursor.at = begin;
    for (uint64_t i = 0; i < value.count; i++) cursor.take(cursor.number<uint64_t>(what), 1, what);
  }
  for (uint64_t i = 0; is(value, kFlag) && i < value.count; i++)
    if (value.data[i] > 1) cursor.file.wrong(filled("{} has a flag {}, expected 0 or 1", what, int(value.data[i])));
  return value;
}

// One tensor of the list.
GgufTensor read_tensor(Cursor& cursor, const std::string& in_list, GgufTypes types) {
  constexpr size_t kLongestName = 64;
  constexpr uint32_t kMostDimensions = 4;
  GgufTensor tensor = {};
  tensor.name = cursor.text("the name of " + in_list, kLongestName);
  const std::string what = "tensor " + printable(tensor.name);
  const uint32_t dimensions = cursor.number<uint32_t>(what);
  if (dimensions < 1 || dimensions > kMostDimensions)
    cursor.file.wrong(filled("{} has {} dimensions, expected 1 to 4", what, dimensions));
  const uint8_t* const sizes = cursor.take(dimensions, 8, what);
  const uint32_t type = cursor.number<uint32_t>(what);
  tensor.offset = cursor.number<uint64_t>(what);

  tensor.type = GgufType(type);
  const Readable* const known = readable(tensor.type);
  if (types == GgufTypes::readable && !known)
    cursor.file.wrong(what + (type < std::size(kTypes) ? " has type " : " has ") + type_name(tensor.type),
                      "give a file whose tensors are " + readable_names());
  const Readable format = known ? *known : Readable{tensor.type, 64, 1};   // no type has more numbers in a byte
  const uint64_t most = cursor.file.size / format.bytes * format.numbers;  // no tensor of this file has more numbers
  uint64_t count = 1;
  for (uint32_t i = dimensions; i-- > 0;) {
    const uint64_t n = load<uint64_t>(sizes + 8 * i);
    if (n == 0) cursor.file.wrong(what + " has a dimension of 0");
    if (n > most / count) cursor.file.wrong(what + " has a shape larger than the file", kAgain);
    count *= n;
    tensor.shape.push_back(int64_t(n));
  }
  if (!known) return tensor;  // its bytes follow from its place
  if (tensor.columns() % format.numbers != 0)
    cursor.file.wrong(filled("{} of type {} has {} columns, expected a multiple of {}", what, type_name(tensor.type),
                             tensor.columns(), format.numbers));
  tensor.bytes = size_t(count) / format.numbers * format.bytes;
  return tensor;
}

// Gives every tensor its place. The tensors begin at the next multiple of the alignment after the list.
void place_tensors(GgufFile& file, const Cursor& cursor) {
  const size_t padding = (file.alignment - cursor.at % file.alignment) % file.alignment;
  const size_t room = cursor.left() - std::min(padding, cursor.left());
  std::vector<GgufTensor*> by_offset;
  for (GgufTensor& one : file.tensors) {
    const std::string what = "tensor " + printable(one.name);
    if (one.offset % file.alignment != 0)
      file.wrong(filled("{} lies at offset {}, not a multiple of {}", what, one.offset, file.alignment));
    if (one.offset > room || one.bytes > room - one.offset)
      file.wrong(filled("{} has {} bytes at offset {}, but the file has only {} bytes of tensors", what, one.bytes,
                        one.offset, room),
                 kAgain);
    one.data = file.bytes.get() + cursor.at + padding + one.offset;
    by_offset.push_back(&one);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 0; i < by_offset.size(); i++) {
    GgufTensor& tensor = *by_offset[i];
    const uint64_t next = i + 1 < by_offset.size() ? by_offset[i + 1]->offset : room;
    if (!is_readable(tensor.type)) tensor.bytes = size_t(next - tensor.offset);
    if (next - tensor.offset < tensor.bytes)  // of the last one there is room for all
      file.wrong("tensor " + printable(by_offset[i + 1]->name) + " overlaps tensor " + printable(tensor.name));
  }
}

// "GGUF", the version, and how many tensors and keys.
constexpr size_t kBeginning = 4 + 4 + 8 + 8;

GgufFile parse(std::shared_ptr<const uint8_t> bytes, size_t size, const std::string& path, GgufTypes types) {
  GgufFile file;
  file.path = path;
  file.bytes = std::move(bytes);
  file.size = size;
  Cursor cursor{file};
  const std::string magic(reinterpret_cast<const char*>(file.bytes.get()), std::min<size_t>(size, 4));
  if (magic != "GGUF") file.wrong("not a GGUF file: it begins with \"" + printable(magic) + "\"", "give a GGUF file");
  if (size < kBeginning) file.wrong("the file ends within its header", kAgain);
  cursor.at = 4;
  file.version = cursor.number<uint32_t>("the version");
  if (file.version != 0 && file.version % 65536 == 0) file.wrong("a big-endian GGUF file", "give a little-endian one");
  if (file.version != 2 && file.version != 3) file.wrong(filled("GGUF version {}, expected 2 or 3", file.version));
  const uint64_t tensors = cursor.number<uint64_t>("the header"), keys = cursor.number<uint64_t>("the header");
  constexpr size_t kLongestKey = 65535, kLeastKey = 8 + 4 + 1;  // bytes of a key and its value
  cursor.expect(keys, kLeastKey, "keys");
  for (uint64_t i = 0; i < keys; i++) {
    const std::string key = cursor.text(filled("key {} of the metadata", i + 1), kLongestKey);
    const GgufValue value = read_value(cursor, "the metadata's " + printable(key));
    if (!file.metadata.emplace(key, value).second) file.wrong("the metadata name " + printable(key) + " twice");
  }
  constexpr size_t kLeastTensor = 8 + 4 + 8 + 4 + 8;  // bytes of a tensor in the list
  cursor.expect(tensors, kLeastTensor, "tensors");
  for (uint64_t i = 0; i < tensors; i++) {
    file.tensors.push_back(read_tensor(cursor, "tensor " + std::to_string(i + 1), types));
    const std::string& name = file.tensors.back().name;
    if (!file.index.emplace(name, i).second) file.wrong("two tensors are called " + printable(name));
  }

  file.alignment = size_t(file.integer("general.alignment", 8, 1 << 30, 32));
  if (file.alignment & (file.alignment - 1))
    refuse_value(file, "general.alignment", std::to_string(file.alignment), "a power of two");
  const bool quantized = std::any_of(file.tensors.begin(), file.tensors.end(), [](const GgufTensor& one) {
    return is_readable(one.type) && readable(one.type)->numbers > 1;
  });
  if (quantized) file.integer("general.quantization_version", 2, 2, 2);  // before, nibbles lay in another order
  place_tensors(file, cursor);
  return file;
}

}  // namespace

GgufFile read_gguf(const std::string& path, GgufTypes types) {
  const RegularFile regular(path);
  const size_t size = regular.size;
  if (size < kBeginning) return parse_gguf(read_file(path), path, types);  // too short; no map has 0 bytes
  void* const map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, regular.file.handle, 0);
  if (map == MAP_FAILED) refuse_path("cannot map the file", path, errno);
  const auto unmap = [size](const uint8_t* at) { munmap(const_cast<uint8_t*>(at), size); };
  GgufFile file = parse({static_cast<const uint8_t*>(map), unmap}, size, path, types);
  file.mapped = true;
  return file;
}

GgufFile parse_gguf(const std::string& bytes, const std::string& where, GgufTypes types) {
  const size_t words = std::max<size_t>(1, (bytes.size() + 7) / 8);  // so that the copy is aligned
  std::shared_ptr<uint64_t> copy(new uint64_t[words](), std::default_delete<uint64_t[]>());
  memcpy(copy.get(), bytes.data(), bytes.size());
  return parse({copy, reinterpret_cast<const uint8_t*>(copy.get())}, bytes.size(), where, types);
}

}  // namespace nanospec
