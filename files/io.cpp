// files/io.cpp: what io.h declares, in the same order.
#include "files/io.h"

#include <fcntl.h>
#include <sha256.h>
#include <sys/file.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL  // a header is all of the library that is needed
#include <xxhash.h>

#include "files/unfinished.h"
#include "machine/threads.h"

namespace nanospec {

void refuse_path(const std::string& wrong, const std::string& path, int error) {
  const char* advice = error == ENOSPC || error == EDQUOT ? "make room"
                       : error == EFBIG                   ? "make room for files of this size (ulimit -f)"
                                                          : "check the path and its permissions";
  refuse(wrong, printable(path, 300) + " (" + std::strerror(error) + ")", advice);
}

void check_memory(const std::string& path, double bytes, double takes, const std::string& other) {
  constexpr double kLarge = 64e6;  // less is not checked
  const double free = takes > kLarge ? double(available_bytes()) : takes;
  if (takes <= free) return;
  const auto gigabytes = [](double number) { return decimals(number * 1e-9, 1) + " GB"; };
  refuse("the file does not fit in memory", filled("{} ({})", printable(path, 300), gigabytes(bytes)),
         filled("it takes {}, {} are free; give {}", gigabytes(takes), gigabytes(free), other));
}

int lock_shortly(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path();
  const int handle = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < 200 && flock(handle, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++) usleep(10000);
  return handle;
}

double file_bytes(const std::string& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  return error ? 0 : double(bytes);
}

static struct stat status_of(const OpenFile& file, const std::string& path) {
  struct stat status;
  if (file.handle < 0 || fstat(file.handle, &status) != 0) refuse_path("cannot read the file", path, errno);
  if (S_ISDIR(status.st_mode)) refuse_path("cannot read the file", path, EISDIR);
  return status;
}

RegularFile::RegularFile(const std::string& path)
    : file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {  // a pipe that nobody writes is opened too
  const struct stat status = status_of(file, path);
  if (!S_ISREG(status.st_mode))
    refuse("a pipe or a device, where a file of a model is due", printable(path, 300), "give a file");
  size = size_t(status.st_size);
}

void read_more(const OpenFile& file, size_t n, std::string& bytes, const std::string& path) {
  size_t filled = bytes.size();
  bytes.resize(filled + n);
  while (filled < bytes.size()) {
    const ssize_t got = read(file.handle, &bytes[filled], bytes.size() - filled);
    if (got < 0 && errno != EINTR) refuse_path("cannot read the file", path, errno);
    if (got == 0) break;
    if (got > 0) filled += size_t(got);
  }
  bytes.resize(filled);
}

std::string read_file(const std::string& path) {
  constexpr size_t kLongestPipe = size_t(256) << 20, kLeast = 1 << 16;
  const OpenFile file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const struct stat status = status_of(file, path);
  const bool regular = S_ISREG(status.st_mode);
  if (regular) check_memory(path, double(status.st_size), double(status.st_size));
  std::string bytes;
  for (size_t more = regular ? size_t(status.st_size) + 1 : kLeast;; more = std::max(kLeast, bytes.size())) {
    const size_t wanted = bytes.size() + more;
    read_more(file, more, bytes, path);
    if (bytes.size() < wanted) return bytes;
    if (!regular && wanted >= kLongestPipe)
      refuse("more than 256 MiB from a pipe", printable(path, 300), "give a file");
  }
}

int write_all(int handle, const Pieces& pieces) {
  for (std::string_view bytes : pieces)
    while (!bytes.empty()) {
      const ssize_t put = write(handle, bytes.data(), bytes.size());
      if (put < 0 && errno != EINTR) return errno;
      if (put > 0) bytes.remove_prefix(size_t(put));
    }
  return fsync(handle) == 0 || errno == EINVAL || errno == EROFS ? 0 : errno;  // a pipe has no disk to reach
}

std::string behind_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system's
  std::string at = path;
  for (int i = 0; i < kMostLinks; i++) {
    std::error_code error;
    const std::filesystem::path next = std::filesystem::read_symlink(at, error);
    if (error) return at;
    at = std::filesystem::path(at).replace_filename(next).string();
  }
  return path;
}

void write_file(const std::string& path, const Pieces& pieces) {
  struct stat status;
  const bool exists = stat(path.c_str(), &status) == 0;
  if (!exists && errno == ELOOP) refuse_path("cannot write the file", path, ELOOP);
  const bool by_rename = !exists || S_ISREG(status.st_mode);
  const std::string target = by_rename ? behind_links(path) : path;
  const std::string open_path = by_rename ? temporary_name(target) : target;
  UnfinishedList unfinished;
  if (by_rename) unfinished.emplace_back(open_path);
  const OpenFile file{open(open_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666)};
  if (file.handle < 0 && errno == ENXIO)
    refuse("nobody reads the pipe", printable(path, 300), "start its reader first, or give a file");
  if (file.handle < 0) refuse_path("cannot write the file", path, errno);
  fcntl(file.handle, F_SETFL, 0);  // a reader may take its time
  if (exists && by_rename) {       // the owner where it may be: if not, the writer's own file is as good
    if (fchown(file.handle, status.st_uid, status.st_gid) != 0) errno = 0;
    fchmod(file.handle, status.st_mode & 07777);
  }
  int error = write_all(file.handle, pieces);
  if (!error && by_rename && rename(open_path.c_str(), target.c_str()) != 0) error = errno;
  if (error) refuse_path("cannot write the file", path, error);
}

std::string hash_of(const Pieces& pieces) {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  for (std::string_view bytes : pieces) XXH64_update(&state, bytes.data(), bytes.size());
  char digits[17];
  snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(XXH64_digest(&state)));
  return kHashPrefix + std::string(digits);
}

std::string sha256(const std::string& bytes) {
  char digits[SHA256_DIGEST_STRING_LENGTH];
  return SHA256Data(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digits);
}

void create_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) refuse_path("cannot create the folder", path, error.value());
  if (access(path.c_str(), W_OK | X_OK) != 0) refuse_path("cannot write into the folder", path, errno);
}

}  // namespace nanospec
