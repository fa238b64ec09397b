/* Model files, whole ones of each kind and ones spoilt in one place: a refusal must name the file, the tensor or field
   and the fault. Leaves out what the models compute. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broken.h"
#include "parts.h"

#include <cmocka.h> /* last: it defines a macro fail */

#define REFUSED(draft, ...) \
    do { \
        failure f_ = load_fails(draft); \
        assert_true(says(&f_, "FILE: ", __VA_ARGS__, NULL)); \
    } while (0)

static model *load(const draft *d, failure *f)
{
    file_bytes file = draft_bytes(d);
    safetensors *s = safetensors_parse(file.bytes, file.n, "FILE", f);
    model *m = s ? model_from(s, f) : NULL;

    safetensors_close(s);
    free(file.bytes);
    return m;
}

static failure load_fails(const draft *d)
{
    failure f = {""};

    assert_null(load(d, &f));
    return f;
}

static model *loaded(const draft *d)
{
    failure f = {""};
    model *m = load(d, &f);

    if (!m)
        fail_msg("refused: %s", f.sentence);
    return m;
}

static draft with(position_kind position, const char *key, const char *value)
{
    draft d = draft_of(position);

    draft_set(&d, key, value);
    return d;
}

static void accepted(const draft *d)
{
    model_free(loaded(d));
}

/* ---- whole files ---- */

static void holds(const draft *d, const char *name, const real *values, int n)
{
    int first = draft_first(d, name);

    for (int i = 0; i < n; i++)
        assert_true(values[i] == draft_value(first + i));
}

static void the_layer_holds(const draft *d, const layer *l, int d_kv, bool bias)
{
    holds(d, "layers.0.attention_norm.weight", l->attention_norm->gain, 4);
    holds(d, "layers.0.mlp_norm.weight", l->mlp_norm->gain, 4);
    holds(d, "layers.0.query.weight", l->query->matrix, 16);
    holds(d, "layers.0.key.weight", l->key->matrix, 4 * d_kv);
    holds(d, "layers.0.value.weight", l->value->matrix, 4 * d_kv);
    holds(d, "layers.0.output.weight", l->output->matrix, 16);
    holds(d, "layers.0.up.weight", l->up->matrix, 12);
    holds(d, "layers.0.down.weight", l->down->matrix, 12);
    if (!bias)
        return;
    holds(d, "layers.0.attention_norm.bias", l->attention_norm->bias, 4);
    holds(d, "layers.0.mlp_norm.bias", l->mlp_norm->bias, 4);
    holds(d, "layers.0.query.bias", l->query->bias, 4);
    holds(d, "layers.0.key.bias", l->key->bias, d_kv);
    holds(d, "layers.0.value.bias", l->value->bias, d_kv);
    holds(d, "layers.0.output.bias", l->output->bias, 4);
    holds(d, "layers.0.up.bias", l->up->bias, 3);
    holds(d, "layers.0.down.bias", l->down->bias, 4);
}

static void the_sizes_are(const model_shape *s)
{
    assert_int_equal(s->n_vocab, 3);
    assert_int_equal(s->n_ctx, 4);
    assert_int_equal(s->d_model, 4);
    assert_int_equal(s->n_layer, 1);
    assert_int_equal(s->n_head, 2);
    assert_int_equal(s->d_head, 2);
    assert_int_equal(s->d_ff, 3);
    assert_true(s->norm_eps == 1e-5 && s->rope_base == 10000);
}

static void a_sinusoidal_model_is_read_whole(void **state)
{
    draft d = draft_of(SINUSOIDAL);
    model *m = loaded(&d);
    const model_shape *s = &m->shape;

    (void)state;
    the_sizes_are(s);
    assert_true(s->norm == LAYER_NORM && s->activation == GELU_TANH && s->position == SINUSOIDAL && s->n_kv_head == 2);
    assert_true(s->bias && s->tied);
    the_layer_holds(&d, &m->layers[0], 4, true);
    holds(&d, "token_embedding", m->parts->token_embedding, 12);
    holds(&d, "token_embedding", m->parts->unembedding.matrix, 12);
    holds(&d, "final_norm.weight", m->parts->final_norm.gain, 4);
    holds(&d, "final_norm.bias", m->parts->final_norm.bias, 4);
    assert_null(m->layers[0].gate);
    assert_null(m->position_embedding);
    model_free(m);
}

static void a_learned_model_is_read_whole(void **state)
{
    draft d = draft_of(LEARNED);
    model *m = loaded(&d);
    const model_shape *s = &m->shape;

    (void)state;
    the_sizes_are(s);
    assert_true(s->norm == LAYER_NORM && s->activation == GELU_EXACT && s->position == LEARNED && s->n_kv_head == 2);
    assert_true(s->bias && !s->tied);
    the_layer_holds(&d, &m->layers[0], 4, true);
    holds(&d, "token_embedding", m->parts->token_embedding, 12);
    holds(&d, "position_embedding", m->position_embedding, 16);
    holds(&d, "unembedding.weight", m->parts->unembedding.matrix, 12);
    model_free(m);
}

static void a_rotary_model_is_read_whole(void **state)
{
    draft d = draft_of(ROTARY);
    model *m = loaded(&d);
    const model_shape *s = &m->shape;

    (void)state;
    the_sizes_are(s);
    assert_true(s->norm == RMS_NORM && s->activation == SWIGLU && s->position == ROTARY && s->n_kv_head == 1);
    assert_true(!s->bias && s->tied);
    the_layer_holds(&d, &m->layers[0], 2, false);
    holds(&d, "layers.0.gate.weight", m->layers[0].gate->matrix, 12);
    assert_null(m->layers[0].query->bias);
    assert_null(m->layers[0].mlp_norm->bias);
    model_free(m);
}

static void the_vocabulary_comes_with_an_end_of_text_token(void **state)
{
    draft d = with(LEARNED, "vocabulary", "é€");
    model *m = loaded(&d);

    (void)state;
    assert_string_equal(model_vocabulary(m), "é€");
    assert_int_equal(m->end_of_text, 2);
    model_free(m);
}

static void a_model_without_a_vocabulary_has_no_end_of_text_token(void **state)
{
    draft d = with(LEARNED, "vocabulary", NULL);

    (void)state;
    draft_set(&d, "n_vocab", "5");
    draft_find(&d, "token_embedding")->shape[0] = draft_find(&d, "unembedding.weight")->shape[0] = 5;
    model *m = loaded(&d);
    assert_null(model_vocabulary(m));
    assert_int_equal(m->end_of_text, -1);
    model_free(m);
}

static void weights_in_double_are_read_too(void **state)
{
    draft d = draft_of(ROTARY);

    (void)state;
    for (int i = 0; i < d.n_tensors; i++)
        strcpy(d.tensors[i].dtype, "F64");
    d.odd = draft_first(&d, "layers.0.up.weight");
    d.odd_value = 0.1;
    model *m = loaded(&d);
    assert_true(m->layers[0].up->matrix[0] == (real)0.1);
    assert_true(m->layers[0].up->matrix[1] == draft_value(d.odd + 1));
    model_free(m);
}

static void a_file_on_disk_is_loaded_and_let_go(void **state)
{
    char path[64];
    draft d = draft_of(SINUSOIDAL);
    file_bytes file = draft_bytes(&d);
    failure f;

    (void)state;
    write_temporary(path, file.bytes, file.n);
    model *m = model_load(path, &f);
    assert_int_equal(truncate(path, 0), 0); /* a model that still read the file would crash here */
    unlink(path);
    assert_non_null(m);
    the_layer_holds(&d, &m->layers[0], 4, true);
    assert_string_equal(model_vocabulary(m), "ab");
    model_free(m);
    free(file.bytes);
}

static void the_path_stands_once_in_the_sentence(void **state)
{
    char path[64];
    draft d = with(LEARNED, "n_ctx", NULL);
    file_bytes file = draft_bytes(&d);
    failure f = {""};

    (void)state;
    write_temporary(path, file.bytes, file.n);
    assert_null(model_load(path, &f));
    assert_true(says(&f, path, ": the metadata has no n_ctx", NULL));
    assert_memory_equal(f.sentence, path, strlen(path));
    assert_null(strstr(f.sentence + 1, path));
    unlink(path);
    assert_null(model_load(path, &f));
    assert_true(says(&f, path, ": can't be opened", NULL));
    free(file.bytes);
}

/* ---- the metadata ---- */

static const char *const sizes[] = {"n_vocab", "n_ctx", "d_model", "n_layer", "n_head", "n_kv_head", "d_ff"};
static const char *const reals[] = {"norm_eps", "rope_base"};
static const char *const kinds[] = {"norm", "activation", "position", "bias", "output"};

#define EACH(key, keys) \
    for (const char *const *key = keys; key < keys + sizeof keys / sizeof *keys; key++)

static void field_refused(const char *key, const char *value, const char *fault)
{
    draft d = with(ROTARY, key, value);

    REFUSED(&d, key, fault);
}

static void a_missing_field_is_refused(void **state)
{
    (void)state;
    EACH(key, sizes)
        field_refused(*key, NULL, "");
    EACH(key, reals)
        field_refused(*key, NULL, "");
    EACH(key, kinds)
        field_refused(*key, NULL, "");
    draft d = with(ROTARY, "d_ff", NULL);
    REFUSED(&d, "the metadata has no d_ff");
}

static void a_field_that_is_no_number_is_refused(void **state)
{
    (void)state;
    EACH(key, sizes) {
        field_refused(*key, "", "isn't a number");
        field_refused(*key, "many", "\"many\", which isn't a number");
        field_refused(*key, "-", "isn't a number");
        field_refused(*key, " 4", "isn't a number");
        field_refused(*key, "+4", "isn't a number");
    }
    EACH(key, reals) {
        field_refused(*key, "", "isn't a number");
        field_refused(*key, "nan", "\"nan\", which isn't a number");
        field_refused(*key, "-inf", "isn't a number");
        field_refused(*key, " 1", "isn't a number");
    }
}

static void a_number_with_something_behind_it_is_refused(void **state)
{
    (void)state;
    EACH(key, sizes) {
        field_refused(*key, "4x", "\"4x\", which isn't a number");
        field_refused(*key, "4.0", "isn't a number");
        field_refused(*key, "4 ", "isn't a number");
    }
    EACH(key, reals)
        field_refused(*key, "1e-5 ", "isn't a number");
    field_refused("n_ctx", "4\\u001b", "\"4\\x1b\"");
}

static void a_number_out_of_range_is_refused(void **state)
{
    (void)state;
    EACH(key, sizes) {
        field_refused(*key, "0", "is 0, but must be from 1");
        field_refused(*key, "-4", "is -4, but must be from 1");
        field_refused(*key, "2147483648", "2147483648, which is out of range");
        field_refused(*key, "4294967300", "4294967300, which is out of range"); /* 4 modulo 2^32 */
        field_refused(*key, "-4294967292", "-4294967292, which is out of range");
        field_refused(*key, "99999999999999999999", "out of range");
    }
    field_refused("norm_eps", "1", "is 1, ");
    field_refused("norm_eps", "-1e-9", "is -1e-09, ");
    field_refused("rope_base", "1e999", "is inf, ");
    field_refused("rope_base", "1", "is 1, ");
}

static void an_impossible_shape_is_refused(void **state)
{
    (void)state;
    field_refused("n_head", "3", "3");
    field_refused("n_kv_head", "3", "3");
}

static void a_kind_that_is_unknown_is_refused_and_the_known_ones_are_listed(void **state)
{
    (void)state;
    EACH(key, kinds) {
        field_refused(*key, "other", "\"other\", but must be one of: ");
        field_refused(*key, "", "\"\", but must be one of: ");
    }
    field_refused("norm", "layer_norm rms_norm", "but must be one of: layer_norm rms_norm");
    field_refused("activation", "gelu", "but must be one of: gelu_tanh gelu_exact swiglu");
    field_refused("position", "rotary2", "but must be one of: sinusoidal learned rotary");
    field_refused("bias", "True", "but must be one of: false true");
    field_refused("output", "ied", "but must be one of: untied tied");
    field_refused("norm", "\\u0007", "\"\\x07\"");
}

static void a_file_without_metadata_is_refused(void **state)
{
    draft d = draft_of(ROTARY);

    (void)state;
    d.n_fields = 0;
    REFUSED(&d, "the metadata has no n_vocab");
}

/* ---- the vocabulary ---- */

static void a_vocabulary_of_another_size_is_refused(void **state)
{
    (void)state;
    field_refused("vocabulary", "a", "has 1 characters, so n_vocab must be 2, but it is 3");
    field_refused("vocabulary", "abc", "has 3 characters, so n_vocab must be 4, but it is 3");
}

static void a_vocabulary_that_makes_no_tokenizer_is_refused(void **state)
{
    (void)state;
    field_refused("vocabulary", "", "is empty");
    field_refused("vocabulary", "aa", "a again");
}

/* ---- the tensors ---- */

static void a_missing_tensor_is_refused(void **state)
{
    draft whole = draft_of(LEARNED);

    (void)state;
    for (int i = 0; i < whole.n_tensors; i++) {
        draft d = whole;
        draft_remove(&d, whole.tensors[i].name);
        REFUSED(&d, "tensor ", whole.tensors[i].name, " is missing");
    }
}

static void a_tensor_too_many_is_refused(void **state)
{
    draft d = draft_of(SINUSOIDAL);

    (void)state;
    draft_add(&d, "unembedding.weight", 2, 3, 4);
    REFUSED(&d, "tensor unembedding.weight isn't part");
    d = draft_of(ROTARY);
    draft_add(&d, "layers.0.query.bias", 1, 4, 1);
    REFUSED(&d, "tensor layers.0.query.bias isn't part");
    d = draft_of(ROTARY);
    draft_add(&d, "bell\\u0007", 1, 4, 1);
    REFUSED(&d, "tensor bell\\x07 isn't part");
}

static void a_tensor_of_another_size_is_refused_with_both_shapes(void **state)
{
    draft whole = draft_of(LEARNED);

    (void)state;
    for (int i = 0; i < whole.n_tensors; i++)
        for (int axis = 0; axis < whole.tensors[i].n_axes; axis++) {
            draft d = whole;
            d.tensors[i].shape[axis]++;
            REFUSED(&d, "tensor ", d.tensors[i].name, " has the shape [", "], but must have [");
        }
    draft d = whole;
    draft_find(&d, "layers.0.up.weight")->shape[0] = 5;
    REFUSED(&d, "tensor layers.0.up.weight has the shape [5, 4], but must have [3, 4]");
}

static void a_tensor_of_other_axes_is_refused_with_both_shapes(void **state)
{
    draft d = draft_of(LEARNED);

    (void)state;
    draft_find(&d, "final_norm.weight")->n_axes = 2;
    REFUSED(&d, "tensor final_norm.weight has the shape [4, 1], but must have [4]");
    d = draft_of(LEARNED);
    draft_find(&d, "final_norm.weight")->n_axes = 0;
    REFUSED(&d, "tensor final_norm.weight has the shape [], but must have [4]");
    d = draft_of(LEARNED);
    draft_find(&d, "layers.0.query.weight")->n_axes = 4;
    REFUSED(&d, "tensor layers.0.query.weight has the shape [4, 4, 1, 1], but must have [4, 4]");
    d = draft_of(LEARNED);
    draft_find(&d, "token_embedding")->n_axes = 1;
    REFUSED(&d, "tensor token_embedding has the shape [3], but must have [3, 4]");
    d = draft_of(LEARNED);
    *draft_find(&d, "layers.0.up.weight") = (draft_tensor){
        .name = "layers.0.up.weight", .dtype = "F32", .n_axes = 2, .shape = {4, 3}}; /* transposed */
    REFUSED(&d, "tensor layers.0.up.weight has the shape [4, 3], but must have [3, 4]");
}

static void weights_of_another_dtype_are_refused(void **state)
{
    draft d = draft_of(LEARNED);

    (void)state;
    strcpy(draft_find(&d, "layers.0.key.weight")->dtype, "I32");
    REFUSED(&d, "tensor layers.0.key.weight", "I32", "F32 and F64");
}

static void a_weight_that_is_not_finite_is_refused_by_its_index(void **state)
{
    draft d = draft_of(LEARNED);

    (void)state;
    d.odd = draft_first(&d, "layers.0.down.bias") + 3;
    d.odd_value = NAN;
    REFUSED(&d, "tensor layers.0.down.bias", "element 3 is ", "nan");
    d.odd = draft_first(&d, "token_embedding") + 11;
    d.odd_value = -INFINITY;
    REFUSED(&d, "tensor token_embedding", "element 11 is -inf");
}

static void a_weight_too_large_for_float_is_refused_only_in_float(void **state)
{
    draft d = draft_of(LEARNED);

    (void)state;
    strcpy(draft_find(&d, "final_norm.bias")->dtype, "F64");
    d.odd = draft_first(&d, "final_norm.bias") + 2;
    d.odd_value = -(double)FLT_MAX;
    accepted(&d);
    d.odd_value = -1e39;
    if (sizeof(real) == sizeof(double))
        accepted(&d);
    else
        REFUSED(&d, "tensor final_norm.bias", "element 2 is -1e+39", "too large for float");
}

/* ---- sizes that the file doesn't back ---- */

static void sizes_far_beyond_the_file_are_refused_by_a_tensor(void **state)
{
    draft d = with(LEARNED, "n_vocab", "1048576");

    (void)state;
    draft_set(&d, "d_model", "65536");
    draft_set(&d, "d_ff", "262144");
    draft_set(&d, "vocabulary", NULL);
    REFUSED(&d, "has the shape [", "], but must have [");
    d = with(LEARNED, "n_layer", "128");
    REFUSED(&d, "tensor layers.1.", " is missing");
}

/* Each position takes 4 numbers of table and 2 * 3 of the MLP's working memory. */
static void a_context_out_of_proportion_to_the_weights_is_refused(void **state)
{
    int n_weights = 0;
    char n_ctx[16];
    draft d = draft_of(SINUSOIDAL);

    (void)state;
    model *m = loaded(&d);
    for (int i = 0; i < m->parts->n_slots; i++)
        n_weights += m->parts->slots[i].shape[0] * m->parts->slots[i].shape[1];
    model_free(m);
    int most = ((1 << 22) + 4 * n_weights) / 10;
    snprintf(n_ctx, sizeof n_ctx, "%d", most);
    draft_set(&d, "n_ctx", n_ctx);
    accepted(&d);
    snprintf(n_ctx, sizeof n_ctx, "%d", most + 1);
    draft_set(&d, "n_ctx", n_ctx);
    REFUSED(&d, "n_ctx is ", n_ctx, "working memory", "too many");
    draft_set(&d, "n_ctx", "1048576");
    REFUSED(&d, "n_ctx is 1048576", "10485760 numbers of working memory", "too many");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sinusoidal_model_is_read_whole),
        cmocka_unit_test(a_learned_model_is_read_whole),
        cmocka_unit_test(a_rotary_model_is_read_whole),
        cmocka_unit_test(the_vocabulary_comes_with_an_end_of_text_token),
        cmocka_unit_test(a_model_without_a_vocabulary_has_no_end_of_text_token),
        cmocka_unit_test(weights_in_double_are_read_too),
        cmocka_unit_test(a_file_on_disk_is_loaded_and_let_go),
        cmocka_unit_test(the_path_stands_once_in_the_sentence),
        cmocka_unit_test(a_missing_field_is_refused),
        cmocka_unit_test(a_field_that_is_no_number_is_refused),
        cmocka_unit_test(a_number_with_something_behind_it_is_refused),
        cmocka_unit_test(a_number_out_of_range_is_refused),
        cmocka_unit_test(an_impossible_shape_is_refused),
        cmocka_unit_test(a_kind_that_is_unknown_is_refused_and_the_known_ones_are_listed),
        cmocka_unit_test(a_file_without_metadata_is_refused),
        cmocka_unit_test(a_vocabulary_of_another_size_is_refused),
        cmocka_unit_test(a_vocabulary_that_makes_no_tokenizer_is_refused),
        cmocka_unit_test(a_missing_tensor_is_refused),
        cmocka_unit_test(a_tensor_too_many_is_refused),
        cmocka_unit_test(a_tensor_of_another_size_is_refused_with_both_shapes),
        cmocka_unit_test(a_tensor_of_other_axes_is_refused_with_both_shapes),
        cmocka_unit_test(weights_of_another_dtype_are_refused),
        cmocka_unit_test(a_weight_that_is_not_finite_is_refused_by_its_index),
        cmocka_unit_test(a_weight_too_large_for_float_is_refused_only_in_float),
        cmocka_unit_test(sizes_far_beyond_the_file_are_refused_by_a_tensor),
        cmocka_unit_test(a_context_out_of_proportion_to_the_weights_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
