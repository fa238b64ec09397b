# Prints which right answers pass, and the tally. Fails if one doesn't, or if there are none.
BEGIN { FS = "\t" }
{
    printf "%-5s  %-34s  %s\n", $1, $2, $3
    passing += $3 == "passes"
}
END {
    printf "\n%d variants, %d pass\n", NR, passing
    exit !(NR > 0 && passing == NR)
}
