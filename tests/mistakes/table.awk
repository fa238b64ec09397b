# Prints the table of known mistakes from their rows, and the tally. Fails if a mistake isn't caught at its step, isn't
# named, or if there are none.
BEGIN {
    FS = "\t"
    line = "%-5s  %-4s  %-34s  %-10s  %-28s  %s\n"
    printf line, "lab", "step", "mistake", "caught at", "named", "from"
}
{
    printf line, $1, $2, $3, $4, $5, $6
    caught += $4 == $2
    named += $5 == "named"
}
END {
    printf "\n%d mistakes, %d caught, %d named\n", NR, caught, named
    exit !(NR > 0 && caught == NR && named == NR)
}
