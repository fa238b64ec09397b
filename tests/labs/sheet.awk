# Prints the score sheet from the rows of all labs' checks: points for each step, 100 in all. A step that waits can't be
# judged before the one that it builds on passes, so nothing is taken off for it yet.
BEGIN {
    FS = "\t"
    mark["pass"] = "pass "; mark["fail"] = "FAIL "; mark["waits"] = "waits"; mark["unwritten"] = "to do"
}
$1 != lab {
    lab = $1
    printf "%s%s\n", (NR > 1 ? "\n" : ""), lab
}
{
    total += $4
    points[$3] += $4
    printf "  %s  %s  %2d of %d  %s\n", $2, mark[$3], ($3 == "pass" ? $4 : 0), $4, $5
}
END {
    printf "\n%d of %d points", points["pass"], total
    if (points["fail"])
        printf ", %d lost", points["fail"]
    if (points["unwritten"])
        printf ", %d not written yet", points["unwritten"]
    if (points["waits"])
        printf ", %d wait for a step before them", points["waits"]
    printf "\n"
    exit !(total > 0 && points["pass"] == total)
}
