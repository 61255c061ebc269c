# tests/documents/transcript.awk: what a page shows of a command's output. run.sh calls it, in three ways.
#
# -v job=list, over a page: line, command and rules of each transcript, with tabs between. A comment stands before its
#   block, <!-- transcript: COMMAND; keeps: "TEXT" N; "TEXT" N -->
# -v job=excerpt -v rules=..., over an output: N lines from the first that holds TEXT, then so for the next rule; "..."
#   stands for what is left out between; progress lines do not count.
# -v job=mask, over a transcript: what a clock, a machine or the date decides becomes "#". The rest is compared.
# -v job=block -v at=LINE, over a page: what the block behind the comment in that line holds.
# -v job=put -v at=LINE -v file=FILE, over a page: the page with the file in that block.
job == "list" && /^<!-- transcript: .*; keeps: .* -->$/ {
  at = index($0, "; keeps: ")
  print FNR "\t" substr($0, 18, at - 18) "\t" substr($0, at + 9, length($0) - at - 12)
}

BEGIN {
  wanted = split(rules, rule, /; */)
  next_rule = 1
}
function text_of(rule) {
  match(rule, /".*"/)
  return substr(rule, RSTART + 1, RLENGTH - 2)
}
job == "excerpt" && / left$/ { next }
job == "excerpt" {
  if (left == 0 && next_rule <= wanted && index($0, text_of(rule[next_rule]))) {
    left = rule[next_rule]
    sub(/.*" */, "", left)
    next_rule++
  }
  if (left > 0) {
    if (skipped) print "..."
    skipped = 0
    left--
    print
  } else skipped = 1
}
END {
  if (job == "excerpt" && next_rule <= wanted) {
    print "no line holds " text_of(rule[next_rule])
    exit 1
  }
}

job == "mask" {
  if (FNR == 1) sub(/  +# commit .*/, "")
  sub(/bytes;? .*(fast|faster).*/, "bytes")              # compare's last sentence: which method won
  sub(/acceptance length [0-9.]+/, "acceptance length #")  # of a shape that follows the clock
  sub(/, [0-9]+ threads?, .*/, "")                       # the machine, behind the model's sizes
  gsub(/[0-9]+ (h|min) [0-9]/, "0")                        # 6 min 46 s
  gsub(/[0-9][0-9.,]* (ms|s|min|tok\/s|tokens\/s|GFLOP\/s|MB|GB)([^a-z]|$)/, "# &")
  gsub(/# [0-9][0-9.,]*/, "#")
  gsub(/# (ms|min)/, "# s")
  mask_columns()
  gsub(/  +/, "  ")
  gsub(/--+/, "--")
  print
}
# The columns of a table that a clock decides; of a row with `auto` all figures, for its trees follow the clock. The
# rule below the head says where columns stand.
function mask_columns(   i, at, cell) {
  if ($0 ~ /^-+  /) ruled = columns_of($0)
  else if ($0 == "") ruled = 0
  if ($0 !~ /^-+  /) {
    for (i = 1; i <= ruled; i++) {
      cell = substr($0, from[i], width[i])
      if (cell ~ /^ *[0-9]/ && (head[i] ~ /tok\/s|speedup|lowest|highest|ms|draft/ || $0 ~ /auto  /))
        $0 = substr($0, 1, from[i] - 1) sprintf("%" width[i] "s", "#") substr($0, from[i] + width[i])
    }
    before = $0
  }
}
function columns_of(line,   n, i, at, parts) {
  n = split(line, parts, /  /)
  at = 1
  for (i = 1; i <= n; i++) {
    from[i] = at
    width[i] = length(parts[i])
    head[i] = substr(before, at, width[i])
    at += width[i] + 2
  }
  return n
}

# Where the block is: 1 before its first fence, 2 within, 3 behind.
job == "block" || job == "put" {
  if (FNR == at) part = 1
  else if (part && part < 3 && /^```/) part++
  else if (part == 2) {
    if (job == "block") print
    next
  }
  if (job == "put") {
    print
    if (part == 2) while ((getline line <file) > 0) print line
  }
}
