/* Fingerprints: a hash of what must be equal, and weighted sums of what may differ by rounding. */
#include "fingerprint.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "random.h"

/* FNV-1a (Fowler, Noll and Vo), 64 bits. */
static void hash(uint64_t *h, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *h = (*h ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3;
}

static void hash_text(uint64_t *h, const char *text)
{
    hash(h, text, strlen(text) + 1);
}

/* A finite number that stands for any: what isn't finite gets one of its own, and what is huge is scaled down, so that
   it doesn't drown the others. */
static double tame(double x)
{
    if (isnan(x))
        return 1234.5;
    if (fabs(x) <= 1e6)
        return x;
    return copysign(isinf(x) ? 2e6 : 1e6 + log10(fabs(x)), x);
}

static double weight(generator *g)
{
    return 2.0 * (random_bits(g) >> 11) / (1ull << 53) - 1;
}

static void add_record(const record *r, generator *g, fingerprint *f, size_t *n_reals)
{
    bool reals = r->kind == REALS || r->kind == LOGITS;

    hash(&f->exact, &r->kind, sizeof r->kind);
    hash(&f->exact, &r->n, sizeof r->n);
    hash_text(&f->exact, r->where);
    hash_text(&f->exact, r->name);
    if (!reals)
        hash(&f->exact, r + 1, r->n * (r->kind == TEXT ? 1 : 8));
    for (size_t i = 0; reals && i < r->n; i++)
        for (int k = 0; k < N_SUMS; k++)
            f->sums[k] += weight(g) * tame(record_number(r, i));
    *n_reals += reals ? r->n : 0;
    f->n_records++;
}

static void add_outcome(const outcome *o, fingerprint *f)
{
    int status = o->kind == EXITED ? o->status : 0;

    hash(&f->exact, &o->kind, sizeof o->kind);
    hash(&f->exact, &status, sizeof status);
    hash_text(&f->exact, o->kind == CRASHED || o->kind == MISSING ? o->what : "");
}

void fingerprint_of(const job *j, const char *step, fingerprint *f)
{
    generator g = {0};
    size_t n_reals = 0;

    *f = (fingerprint){.exact = 0xcbf29ce484222325};
    for (const record *r = trace_next(j->trace, step, NULL); r; r = trace_next(j->trace, step, r))
        add_record(r, &g, f, &n_reals);
    for (int k = 0; k < N_SUMS && n_reals; k++)
        f->sums[k] /= sqrt(n_reals); /* of the size of one number, whatever their number is */
    add_outcome(&j->outcome, f);
}

bool same_fingerprint(const fingerprint *a, const fingerprint *b)
{
    bool same = a->n_records > 0 && a->n_records == b->n_records && a->exact == b->exact;

    for (int k = 0; k < N_SUMS; k++)
        same = same && fabs(a->sums[k] - b->sums[k]) <= 1e-9;
    return same;
}

void fingerprint_print(const fingerprint *f, FILE *to)
{
    fprintf(to, "%d %016" PRIx64, f->n_records, f->exact);
    for (int k = 0; k < N_SUMS; k++)
        fprintf(to, " %.17g", f->sums[k]);
}

int fingerprint_parse(const char *text, fingerprint *f)
{
    int n = sscanf(text, "%d %" SCNx64 " %lf %lf %lf %lf", &f->n_records, &f->exact, &f->sums[0], &f->sums[1], &f->sums[2],
                   &f->sums[3]);

    return n == 2 + N_SUMS ? 0 : -1;
}
