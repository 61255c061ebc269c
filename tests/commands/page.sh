#!/bin/sh
# tests/commands/page.sh FILE: tries the page that `nanospec show --html FILE` wrote in headless Chromium: it loads
# without a word on the console, stepping changes what is shown, its own self test runs through all iterations and a
# race, on a phone's width too. FILE has at least three iterations. Where there is no Chromium (CHROMIUM names another
# one) it says so and succeeds.
set -u
page=${1:?usage: tests/commands/page.sh FILE}
chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || true)}
if [ -z "$chromium" ]; then echo "page: skipped: no chromium"; exit 0; fi

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
fail() { echo "page: $page: $*"; exit 1; }
[ -s "$page" ] || fail "missing or empty"
url=file://$(cd "$(dirname "$page")" && pwd)/$(basename "$page")

# dump HASH WIDTH: the page at that hash, after 60 s of its own time (which a browser runs through in less), as DOM.
# Frames stand still in such time, and where motion is unwelcome the race goes by a timer instead: hence that flag. On a
# busy machine a browser may fail before it has run the page, or end before the self test has: it is started again,
# twice, with more time.
dump() {
  dom=$scratch/dom$1-$2; root=
  case $1 in selftest) ended=data-selftest=;; *) ended=data-;; esac
  for try in 1 2 3; do
    rm -rf "$scratch/profile"
    timeout 120 "$chromium" --headless=new --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" \
      --enable-logging=stderr --v=0 --force-prefers-reduced-motion --window-size="$2",800 \
      --virtual-time-budget=$((60000 * try)) --dump-dom "$url#$1" >"$dom" 2>"$scratch/log" || continue
    root=$(grep -o -m1 '<html[^>]*>' "$dom" || true)
    case $root in *"$ended"*) break;; esac
  done
  [ -n "$root" ] || fail "#$1: the browser failed: $(tail -1 "$scratch/log")"
  ! grep -q ':CONSOLE' "$scratch/log" || fail "#$1: the console says: $(grep -m1 ':CONSOLE' "$scratch/log")"
  case $root in *data-error=*) fail "#$1: an error: $root";; esac
}
# part ID: what the last dump holds from the element of that id to the next one with an id.
part() { tr '\n' ' ' <"$dom" | sed "s/.*id=\"$1\"[^>]*>//; s/ id=\".*//"; }

for number in 0 2 3; do
  dump "iteration=$number" 1280
  case $number in 0) shown=1;; *) shown=$number;; esac  # iterations count from 1; 0 is taken for the first
  case $root in *"data-iteration=\"$shown\""*) ;; *) fail "#iteration=$number: shows $root";; esac
  part where | grep -q "Iteration $shown of " || fail "#iteration=$number: says $(part where)"
  part highest | grep -q 'highest bar: [1-9]' || fail "#iteration=$number: the overview has no scale: $(part highest)"
  part tree | grep -q 'data-node="0"' || fail "#iteration=$number: draws no tree"
  part tree >"$scratch/tree$number"; part text >"$scratch/text$number"; part gather >"$scratch/gather$number"
done
for what in tree text gather; do
  for pair in "0 2" "2 3"; do
    set -- $pair
    ! cmp -s "$scratch/$what$1" "$scratch/$what$2" || fail "iterations $1 and $2 show the same $what"
  done
done

for width in 1280 360; do
  dump selftest $width
  case $root in *'steps, race ended"'*) ;; *) fail "#selftest at $width pixels: $root";; esac
done
steps=$(expr "$root" : '.*data-selftest="passed \([0-9]*\) steps')
[ "$steps" = "$(sed -n 's/.*Iteration [0-9]* of \([0-9]*\)<.*/\1/p' "$dom" | head -1)" ] || fail "#selftest: $steps steps are not all"
! grep -v '^window.DATA' "$page" | grep -qE "(src|href) *= *[\"']?(https?:)?//|url\(|@import" || fail "names something on a network"
echo "page: $page: $steps passes, stepped through by key, and a race: no error"
