#!/bin/sh
# Runs test commands one after another, shows what fails in full, and ends with one tally of all of them. A command's own
# tally is read from its last lines: cmocka's, or "N mistakes, …"; one without any counts as one test, by its exit status.
passed=0 failed=0
output=$(mktemp) || exit 2
trap 'rm -f "$output"' EXIT

for command; do
    status=0
    $command >"$output" 2>&1 || status=$?
    ok=$(sed -n -e 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' -e 's/^\([0-9]*\) mistakes, .*/\1/p' \
        -e 's/^\([0-9]*\) variants, .*/\1/p' "$output" | tail -n 1)
    bad=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' "$output" | tail -n 1)
    if [ "$status" -ne 0 ]; then
        [ "${bad:-0}" -gt 0 ] || { ok=0 bad=1; }
        cat "$output"
    fi
    ok=${ok:-$((status == 0 && ${bad:-0} == 0))}
    printf '%-44s %4d passed, %d failed\n' "$command" "$ok" "${bad:-0}"
    passed=$((passed + ok)) failed=$((failed + ${bad:-0}))
done

printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
