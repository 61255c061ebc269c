#!/bin/sh
# data/deps.sh: installs what is missing to build nanospec; with all there it is silent and needs no network. `make deps`
# calls it, with the compiler's name in CXX. What is needed is tried; the names are Debian's.
log=/tmp/nanospec-deps.log
has() { command -v "$1" >/dev/null 2>&1; }
reads() { printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s>\n' "$1" | $CXX -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; }
install() {
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@"
}
if [ "${1-}" = install ]; then shift && install "$@" >$log 2>&1; exit; fi # as this script calls itself

missing=
has "${CXX%% *}" || missing="g++"
has curl || ls data/*shakespeare.txt >/dev/null 2>&1 || missing="$missing curl"
for package in nlohmann-json3-dev:nlohmann/json.hpp doctest-dev:doctest/doctest.h \
  libmd-dev:sha256.h libxxhash-dev:xxhash.h libpcre2-dev:pcre2.h libunistring-dev:uninorm.h \
  libedit-dev:histedit.h; do
  reads "${package#*:}" || missing="$missing ${package%:*}"
done
[ -n "$missing" ] || exit 0
echo "installing $missing"
sh data/alive.sh "echo '  installing $missing'" sh "$0" install $missing && exit 0
tail -3 $log
echo "make deps: could not install $missing: apt-get: see $log, or install them by other means"
exit 1
