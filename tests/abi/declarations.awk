# Prints each function that dsgd.h declares on one line, without comments: "int32_t dsgd_rank(const dsgd_session *session);"
{
  while (match($0, /\/\*([^*]|\*[^\/])*\*\//)) $0 = substr($0, 1, RSTART - 1) " " substr($0, RSTART + RLENGTH)
  if (comment) {
    if (!sub(/^.*\*\//, "")) next
    comment = 0
  }
  if (sub(/\/\*.*$/, "")) comment = 1
}
/^DSGD_API / { declaration = "" ; inside = 1 }
inside {
  line = $0
  gsub(/[ \t]+/, " ", line)
  sub(/^ /, "", line)
  declaration = declaration (declaration == "" ? "" : " ") line
  if (declaration ~ /;/) {
    sub(/^DSGD_API /, "", declaration)
    sub(/; *$/, ";", declaration)
    print declaration
    inside = 0
  }
}
