# tests/documents/iteration.awk: one iteration of a page that `nanospec show` wrote, as text: its tree, the mask, what the
# target picks after each row, and the rows that are kept.
#
#   awk -f iteration.awk PAGE
#
# It is the first with a tree of 7 rows of which three are kept that do not stand together. Tokens are in quotes, as JSON
# writes them: the end of a line is \n.

# What stands behind `name` in a piece of JSON.
function behind(text, name) { return substr(text, index(text, name) + length(name)) }
# The text or number that JSON begins with; texts in single quotes.
function first_of(text) {
  match(text, /^("(\\.|[^"\\])*"|[-0-9.e]+)/)
  text = substr(text, 1, RLENGTH)
  gsub(/^"|"$/, "'", text)
  return text
}

# Prints an iteration if it is one to print; returns whether it is.
function show(text,   past, nodes, node, i, j, token, depth, end, kept, line) {
  if (!match(text, /"rows":\[0,[0-9]+,[0-9]+\]/) || text ~ /"rows":\[0,1,/) return 0
  kept = "," substr(text, RSTART + 8, RLENGTH - 9) ","
  past = first_of(behind(text, "\"past\":"))
  nodes = split(text, node, /\{"token":/) - 1
  if (nodes != 7) return 0
  line = "tree         row  depth  end  position   sees"
  for (j = 0; j < nodes; j++) line = line sprintf("  %d", j)
  print line "   the target picks  kept"
  for (i = 0; i < nodes; i++) {
    text = node[i + 2]
    token = first_of(text)
    depth = first_of(behind(text, "\"depth\":"))
    end = first_of(behind(text, "\"end\":"))
    line = sprintf("%-12s %3d  %5d  %3d  %8d       ", substr("            ", 1, 3 * depth) token, i, depth, end, past + depth)
    for (j = 0; j < nodes; j++) line = line "  " (sees(j, i) ? "x" : ".")
    line = line "   " first_of(behind(text, "\"pick\":"))
    print index(kept, "," i ",") ? sprintf("%-88s*", line) : line
    ends[i] = end
  }
  return 1
}
# As Tree::sees does: whether row i sees row j, which came before it.
function sees(j, i) { return j < i ? i < ends[j] : j == i }

{
  parts = split($0, part, /\{"index":/)
  for (p = 2; p <= parts; p++) if (show(part[p])) exit
}
