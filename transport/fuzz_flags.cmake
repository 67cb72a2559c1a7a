# Code under fuzzing is compiled with coverage and sanitizers; the fuzz programs add -fsanitize=fuzzer when they link.
set(fuzz_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
add_compile_options(${fuzz_flags})
add_link_options(${fuzz_flags})
