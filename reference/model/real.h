/* The number type of the whole kit: double, or float with -DREAL=float. The same source must be right in both. */
#ifndef REAL_H
#define REAL_H

#ifndef REAL
#define REAL double
#endif

typedef REAL real;

#endif
