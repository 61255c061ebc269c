// files/io.h: reads and writes whole files, with their checksums and the system's errors; a file's tensors by name.
//
// A file is first written under another name in the same folder, then renamed. So a reader sees the old file or the new
// one, never a part.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "files/text.h"

namespace nanospec {

// Throws std::runtime_error for a failed system call: what failed, on which path, why.
[[noreturn]] void refuse_path(const std::string& wrong, const std::string& path, int error);

// An open file that is closed when it goes.
struct OpenFile {
  int handle;
  ~OpenFile() {
    if (handle >= 0) close(handle);
  }
};

// A file of a model, open to be read more than once: a pipe or a device is refused, and not waited for. Throws
// runtime_error.
struct RegularFile {
  OpenFile file;
  size_t size = 0;  // bytes
  explicit RegularFile(const std::string& path);
};

// Throws std::runtime_error if a file, and what is made of it, need more memory than there is; it advises to give
// `other`.
void check_memory(const std::string& path, double bytes, double takes, const std::string& other = "a smaller file");

// Locks the folder of a file that several processes read, change and write, until the handle is closed: who comes
// waits, but not for more than two seconds, since a training holds the lock to its end. Not every file system has
// locks.
int lock_shortly(const std::string& path);

// A file's size; 0 if it is not known: a pipe, or no file.
double file_bytes(const std::string& path);

// How many bytes a text and its tokens need, while it is encoded: each byte may be a character.
inline double takes_tokens(double text_bytes) { return (1 + sizeof(int)) * text_bytes; }

// The tensors of a file, in its order, and where the one of a name is.
template <class T>
struct NamedTensors {
  std::vector<T> tensors;  // in the order of their bytes (GGUF: of its list)
  std::unordered_map<std::string, size_t> index;

  const T* find(const std::string& name) const {  // null if there is none
    const auto found = index.find(name);
    return found == index.end() ? nullptr : &tensors[found->second];
  }
};

// A number as it lies in a file, little-endian.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are read as they lie in memory");
template <class T>
T load(const void* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// Appends the next n bytes of an open file, or as many as are left. Throws runtime_error.
void read_more(const OpenFile& file, size_t n, std::string& bytes, const std::string& path);
// The bytes of a file, or of a pipe up to 256 MiB. Throws runtime_error.
std::string read_file(const std::string& path);
// The same of a file of a model.
inline std::string read_regular(const std::string& path) {
  const RegularFile refuses_others(path);
  return read_file(path);
}

using Pieces = std::vector<std::string_view>;  // of a file, in order: large pieces need not be copied

// Writes all pieces to an open file and onto the disk. Returns errno, 0 when all went well.
int write_all(int handle, const Pieces& pieces);

// What a file is called while it is written: no other process writes under this name.
constexpr const char* kTemporary = ".unfinished.";  // and the process's number
inline std::string temporary_name(const std::string& path) { return path + kTemporary + std::to_string(getpid()); }

// Where a path leads by its links, whether that is there or not. A loop of links stays what it is.
std::string behind_links(const std::string& path);

// Writes these bytes as the file `path`: under a temporary name, which is renamed at the end. A link stays a link, and
// a file keeps its owner and mode; a pipe or a device is written directly. Throws std::runtime_error.
void write_file(const std::string& path, const Pieces& pieces);

inline void write_file(const std::string& path, const std::string& bytes) { write_file(path, Pieces{bytes}); }

// XXH64 with seed 0 of all pieces, as `xxhsum -H1` prints it: "xxh64:" and 16 hexadecimal digits. It is as fast as
// memory, so every file can be checked at every start. It finds damage, not forgery.
constexpr const char* kHashPrefix = "xxh64:";
std::string hash_of(const Pieces& pieces);
inline std::string hash_of(const std::string& bytes) { return hash_of(Pieces{bytes}); }

// 64 hexadecimal digits.
std::string sha256(const std::string& bytes);

// Makes sure that a folder exists and is writable. Throws std::runtime_error.
void create_folder(const std::string& path);

}  // namespace nanospec
