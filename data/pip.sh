# data/pip.sh: what get.sh and get_model.sh share, each of which reads it: telling, checking, and pip.
# `what` is the word before each line; `scratch` is the folder for what is not whole yet.

is_whole() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$2  -" ]; } # is_whole FILE SHA256
tell() { echo "$what: $*"; }
fail() { echo "$what: $*" >&2; exit 1; }

# need_pip PACKAGE OTHERWISE: installs pip where there is none, for this package alone. OTHERWISE: what to do by hand.
need_pip() {
  if python3 -m pip --version >/dev/null 2>&1; then return; fi
  # Debian's pip brings ca-certificates along, which writes the system's list of authorities anew: a place that told
  # pip of its own list keeps it.
  if [ -f "${PIP_CERT:-}" ]; then
    authorities=$(cd "$scratch" && pwd)/authorities
    cp "$PIP_CERT" "$authorities"
    export PIP_CERT="$authorities" CURL_CA_BUNDLE="$authorities" REQUESTS_CA_BUNDLE="$authorities"
  fi
  sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
  install="$sudo apt-get install -y --no-install-recommends python3-pip"
  tell "installing python3-pip, for the package $1 alone"
  { $install || { $sudo apt-get update && $install; }; } >"$scratch/log" 2>&1 ||
    fail "no pip: $(tail -n 1 "$scratch/log"): install python3-pip, or $2"
}
