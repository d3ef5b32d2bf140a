/* policy_file.h: reads a policy file, whose form docs/training.md has, for policy.h, which includes this.
 * Nothing here trusts the file. Memory is at most twice the size of the file, which stays part of the policy. */
#ifndef POLICY_FILE_H
#define POLICY_FILE_H

/* ---- JSON. A value is the text that it is written in; what `p_skip` has been through, the others trust. */

static const p_json P_NOTHING = {NULL, NULL};

static const char *p_space(const char *s, const char *end) {
    while (s < end && (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t')) s++;
    return s;
}

/* The end of the value that begins at s; NULL: it is no JSON. */
static const char *p_skip(const char *s, const char *end, int depth) {
    const char *start = s;
    char close;
    if (s >= end || depth > 100) return NULL;
    if (*s == '"') {
        for (s++; s < end && *s != '"' && (unsigned char)*s >= 32; s++)
            if (*s == '\\' && ++s >= end) return NULL;
        return s < end && *s == '"' ? s + 1 : NULL;
    }
    if (*s != '{' && *s != '[') { /* a number or a word */
        while (s < end && *s && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzEIN", *s)) s++;
        return s > start ? s : NULL;
    }
    close = *s == '{' ? '}' : ']';
    for (s = p_space(s + 1, end); s >= end || *s != close || s[-1] == ','; s = p_space(s + 1, end)) {
        if (close == '}') { /* the name */
            if (s >= end || *s != '"' || !(s = p_skip(s, end, depth + 1))) return NULL;
            if ((s = p_space(s, end)) >= end || *s++ != ':') return NULL;
            s = p_space(s, end);
        }
        if (!(s = p_skip(s, end, depth + 1)) || (s = p_space(s, end)) >= end) return NULL;
        if (*s == close) break;
        if (*s != ',') return NULL;
    }
    return s + 1;
}

/* What is inside of an array or object, for `p_next`; nothing of another value. */
static p_json p_items(p_json value, char bracket) {
    if (!value.at || *value.at != bracket) return P_NOTHING;
    value.at++, value.end--;
    return value;
}

/* Takes the next item, of an object with its name; 0: there is none. */
static int p_next(p_json *rest, p_json *name, p_json *value) {
    const char *s = p_space(rest->at, rest->end);
    if (s < rest->end && *s == ',') s = p_space(s + 1, rest->end);
    if (s >= rest->end) return 0;
    if (name) {
        name->at = s, name->end = p_skip(s, rest->end, 0);
        s = p_space(p_space(name->end, rest->end) + 1, rest->end);
    }
    value->at = s, rest->at = value->end = p_skip(s, rest->end, 0);
    return 1;
}

static int p_is(p_json text, const char *word) {
    const size_t size = strlen(word);
    return text.at && (size_t)(text.end - text.at) == size + 2 && *text.at == '"' && !memcmp(text.at + 1, word, size);
}

static int p_same(p_json a, p_json b) {
    return a.at && b.at && a.end - a.at == b.end - b.at && !memcmp(a.at, b.at, (size_t)(a.end - a.at));
}

static int p_true(p_json value) { return value.at && *value.at == 't'; }

static p_json p_get(p_json object, const char *key) {
    p_json items = p_items(object, '{'), name, value;
    while (p_next(&items, &name, &value))
        if (p_is(name, key)) return value;
    return P_NOTHING;
}

static int p_length(p_json array) {
    p_json items = p_items(array, '['), item;
    int count = 0;
    while (p_next(&items, NULL, &item)) count++;
    return count;
}

static int p_place(p_json array, p_json text) { /* -1: it is not there */
    p_json items = p_items(array, '['), item;
    int place;
    for (place = 0; p_next(&items, NULL, &item); place++)
        if (p_same(item, text)) return place;
    return -1;
}

/* The number, whatever the locale; `missing` for null and for nothing, NaN for another value. */
static double p_number(p_json value, double missing) {
    const char *s = value.at;
    double number = 0, scale = 1;
    int exponent = 0, sign = 1;
    if (!s || *s == 'n') return missing;
    if (*s == '-') s++;
    if (s == value.end || *s < '0' || *s > '9') return NAN;
    for (; s < value.end && *s >= '0' && *s <= '9'; s++) number = number * 10 + (*s - '0');
    if (s < value.end && *s == '.')
        for (s++; s < value.end && *s >= '0' && *s <= '9'; s++, scale *= 10) number = number * 10 + (*s - '0');
    if (s < value.end && (*s == 'e' || *s == 'E')) {
        if (++s < value.end && (*s == '-' || *s == '+')) sign = *s++ == '-' ? -1 : 1;
        for (; s < value.end && *s >= '0' && *s <= '9' && exponent < 1000; s++) exponent = exponent * 10 + (*s - '0');
    }
    number = number / scale * pow(10, sign * exponent);
    return *value.at == '-' ? -number : number;
}

/* ---- SHA-256 (FIPS 180-4) of pieces, one after the other */

typedef struct p_sha { uint32_t h[8]; uint64_t bytes; unsigned char block[64]; } p_sha;

static uint32_t p_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void p_sha_block(uint32_t h[8], const unsigned char *at) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
        0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
        0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
        0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
        0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
        0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
        0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8], a, b;
    int i;
    for (i = 0; i < 16; i++, at += 4)
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    for (; i < 64; i++) {
        a = p_rotate(w[i - 15], 7) ^ p_rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        b = p_rotate(w[i - 2], 17) ^ p_rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, h, sizeof v);
    for (i = 0; i < 64; i++) {
        a = v[7] + k[i] + w[i] + (p_rotate(v[4], 6) ^ p_rotate(v[4], 11) ^ p_rotate(v[4], 25));
        a += (v[4] & v[5]) ^ (~v[4] & v[6]);
        b = p_rotate(v[0], 2) ^ p_rotate(v[0], 13) ^ p_rotate(v[0], 22);
        b += (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += a, v[0] = a + b;
    }
    for (i = 0; i < 8; i++) h[i] += v[i];
}

static void p_sha_add(p_sha *sha, const void *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    for (; size; at++, size--) {
        sha->block[sha->bytes++ % 64] = *at;
        if (sha->bytes % 64 == 0) p_sha_block(sha->h, sha->block);
    }
}

/* ---- Reading tensors */

typedef struct p_tensor {
    const char *name;
    const unsigned char *data;
    p_json shape;
    int32_t length; /* of the name */
    char type, is_known; /* F: float32, D: float64, I: int64, ?: another one */
} p_tensor;

typedef struct p_reader {
    policy *trained;
    char *error, *room;
    size_t left, num_tensors;
    p_tensor *tensors;
    p_json spaces;
    const char *net;
    char path[64]; /* `net` and `path` stand before the names of tensors */
} p_reader;

/* Zeroed memory of the policy. All of it together is as large as the file. NULL after an error. */
static void *p_alloc(p_reader *r, int count, size_t size) {
    const uint64_t bytes = ((uint64_t)count * size + 15) / 16 * 16;
    char *at = r->room;
    if (bytes > r->left) p_fail(r->error, "the header describes more than the file has");
    if (*r->error) return NULL;
    r->room += bytes, r->left -= (size_t)bytes;
    return memset(at, 0, (size_t)bytes);
}

static int p_by_name(const void *a, const void *b) {
    const p_tensor *x = (const p_tensor *)a, *y = (const p_tensor *)b;
    int order = memcmp(x->name, y->name, (size_t)(x->length < y->length ? x->length : y->length));
    return order ? order : x->length - y->length;
}

/* The numbers of a tensor (rows, columns); -1: the tensor has fewer axes. NULL after an error. */
static const void *p_tensor_of(p_reader *r, const char *name, char type, int rows, int columns) {
    const int shape[3] = {rows, columns, -1};
    char full[160];
    p_tensor wanted, *found = NULL;
    p_json items, item;
    int rank = 0, k;
    wanted.name = full, wanted.length = snprintf(full, sizeof full, "%s%s%s", r->net, r->path, name);
    if (!*r->error) found = (p_tensor *)bsearch(&wanted, r->tensors, r->num_tensors, sizeof wanted, p_by_name);
    if (!found) p_fail(r->error, "tensor %s is missing", full);
    if (*r->error) return NULL;
    for (items = p_items(found->shape, '['); rank < 3 && p_next(&items, NULL, &item); rank++)
        if (shape[rank] < 0 || p_number(item, -1) != shape[rank]) rank = 3;
    if (rank > 2 || shape[rank] >= 0 || found->type != type || (size_t)found->data % (type == 'F' ? 4 : 8) ||
        (double)rows * columns > INT_MAX)
        p_fail(r->error, "tensor %s must be %s, of shape %d, %d (-1: none)", full,
               type == 'F' ? "F32" : type == 'D' ? "F64" : "I64", rows, columns);
    for (k = *r->error ? -1 : abs(rows * columns) - 1; !*r->error && k >= 0 && type != 'I'; k--)
        if (!isfinite(type == 'F' ? (double)((const float *)found->data)[k] : ((const double *)found->data)[k]))
            p_fail(r->error, "tensor %s is NaN or infinite", full);
    if (*r->error) return NULL;
    found->is_known = 1;
    return found->data;
}

static const float *p_floats(p_reader *r, const char *name, int rows, int columns) {
    return (const float *)p_tensor_of(r, name, 'F', rows, columns);
}

static p_linear p_linear_of(p_reader *r, const char *name, int out, int in) { /* in -1: a LayerNorm */
    p_linear linear = {NULL, NULL, in, out};
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    linear.weight = p_floats(r, full, out, in);
    snprintf(full, sizeof full, "%s.bias", name);
    linear.bias = p_floats(r, full, out, -1);
    r->trained->widest = in > r->trained->widest ? in : out > r->trained->widest ? out : r->trained->widest;
    return linear;
}

static float *p_norm_of(p_reader *r, int size) { /* means, then 1 / std of running statistics */
    const int64_t *count = (const int64_t *)p_tensor_of(r, "norm.count", 'I', -1, -1);
    const double *mean = (const double *)p_tensor_of(r, "norm.mean", 'D', size, -1);
    const double *squares = (const double *)p_tensor_of(r, "norm.squares", 'D', size, -1);
    float *norm = (float *)p_alloc(r, size, 2 * sizeof *norm);
    int k;
    for (k = 0; norm && k < size; k++) {
        double std = sqrt(squares[k] / (double)(*count > 1 ? *count : 1));
        norm[k] = (float)fmin(fmax(mean[k], -FLT_MAX), FLT_MAX);
        norm[size + k] = std >= FLT_MIN ? (float)(1 / std) : 1;
    }
    return norm;
}

static void p_at(p_reader *r, const char *format, int number) { snprintf(r->path, sizeof r->path, format, number); }

/* The place of a text among words; 0 for nothing. */
static int p_word(p_reader *r, p_json text, const char *words) {
    char word[32];
    int place;
    for (place = 0; *words && text.at; words += strcspn(words, " "), words += *words == ' ', place++) {
        snprintf(word, sizeof word, "%.*s", (int)strcspn(words, " "), words);
        if (p_is(text, word)) return place;
    }
    if (text.at) p_fail(r->error, "this version does not know %.*s of the header", (int)(text.end - text.at), text.at);
    return 0;
}

static int p_int(p_reader *r, p_json object, const char *key, int missing, int low) {
    double number = p_number(p_get(object, key), missing);
    if (number >= low && number <= P_MOST && number == floor(number)) return (int)number;
    return p_fail(r->error, "%s in the header must be a whole number from %d to 2^24", key, low), low;
}

/* ---- Reading networks */

/* The column of a feature in rows of a type; -1: there is none. */
static int p_column_of(const policy *trained, const p_net *net, int type, p_json name) {
    const p_type *own = &net->types[type];
    const p_json reference = net->reference_name;
    int place = p_place(own->features, name), length = (int)(reference.end - reference.at) - 2;
    if (place >= 0 || !name.at) return place;
    if (own->num_own > own->num_given && name.end - name.at >= length + 14 && !memcmp(name.at, "\"distance to ", 13) &&
        !memcmp(name.at + 13, reference.at + 1, (size_t)length)) { /* ' behind it tell it from another feature */
        name.at += 13 + length;
        if (strspn(name.at, "'") == (size_t)(name.end - name.at - 1)) return own->num_given;
    }
    place = type < trained->num_types ? p_place(trained->globals, name) : -1;
    return place < 0 ? -1 : own->num_own + place;
}

/* The columns that the options of a translation or of relative positions name; 0: the type lacks a position. */
static int p_pose_of(const policy *trained, const p_net *net, int type, p_json options, p_pose *pose) {
    p_json items = p_items(p_get(options, "position_features"), '['), item;
    int k, own = net->types[type].num_own, has_all = 1;
    for (k = 0; k < P_DIMS; k++) {
        int is_named = p_next(&items, NULL, &item);
        pose->position[k] = is_named ? p_column_of(trained, net, type, item) : -1;
        if (is_named && (pose->position[k] < 0 || pose->position[k] >= own)) has_all = 0;
    }
    items = p_items(p_get(options, "rotation_vec_features"), '[');
    for (k = 0; k < 2; k++) pose->vector[k] = p_next(&items, NULL, &item) ? p_column_of(trained, net, type, item) : -1;
    pose->angle = p_column_of(trained, net, type, p_get(options, "rotation_angle_feature"));
    if (pose->vector[0] >= own || pose->vector[1] >= own || pose->vector[1] < 0) pose->vector[0] = -1;
    if (pose->angle >= own) pose->angle = -1; /* a global feature of that name is nobody's */
    return has_all;
}

/* The number of coordinates that options name, and whether they rotate. */
static int p_dims_of(p_reader *r, p_json options, int *rotates) {
    int dims = p_length(p_get(options, "position_features"));
    p_json angle = p_get(options, "rotation_angle_feature");
    *rotates = p_length(p_get(options, "rotation_vec_features")) > 0 || (angle.at && *angle.at == '"');
    if (dims < 1 || dims > P_DIMS || (*rotates && dims != 2))
        p_fail(r->error, "config: %d position_features; allowed: 1 to %d, and 2 where they rotate", dims, P_DIMS);
    return dims;
}

/* Counts features by their kind in `places`; fills the columns, if there are any, with the places. */
static void p_add_columns(p_reader *r, p_json features, p_json kinds, p_column *columns, int places[4]) {
    p_json items = p_items(features, '['), of_kinds, item, each;
    int kind, *place;
    while (!*r->error && p_next(&items, NULL, &item)) {
        for (kind = 0, of_kinds = p_items(kinds, '['); !kind && p_next(&of_kinds, NULL, &each);) {
            if (!p_same(p_get(each, "name"), item)) continue;
            kind = -p_word(r, p_get(each, "type"), "? Angle Flag Category");
            if (kind == -3) kind = p_int(r, each, "num", 0, 1);
        }
        place = &places[kind > 0 ? 3 : -kind];
        if (columns) columns->kind = kind, columns++->slot = *place;
        (*place)++;
    }
}

static void p_read_embedding(p_reader *r, p_net *net, p_type *type, p_json kinds, p_json global_kinds) {
    const p_json globals = type->num_columns > type->num_own ? r->trained->globals : P_NOTHING;
    int places[4] = {0}, k;
    char name[32];
    if (type->num_columns == 0) {
        type->vector = p_floats(r, "vector", 1, net->width);
        return;
    }
    p_add_columns(r, type->features, kinds, NULL, places);
    places[0] += type->num_own - type->num_given;
    p_add_columns(r, globals, global_kinds, NULL, places);
    type->num_plain = places[0], type->num_angles = places[1], k = places[0] + 2 * places[1] + places[2];
    if (k) type->first = p_linear_of(r, "project.0", net->width, k);
    type->finish = p_linear_of(r, "project.2", net->width, -1);
    if (places[0]) type->norm = p_norm_of(r, places[0]);
    type->columns = (p_column *)p_alloc(r, type->num_columns, sizeof *type->columns);
    type->tables = (const float **)p_alloc(r, places[3], sizeof *type->tables);
    if (*r->error) return;
    places[2] = places[0] + 2 * places[1], places[1] = places[0], places[0] = places[3] = 0;
    p_add_columns(r, type->features, kinds, type->columns, places);
    if (type->num_own > type->num_given) type->columns[type->num_given].slot = places[0]++;
    p_add_columns(r, globals, global_kinds, type->columns + type->num_own, places);
    for (k = 0; k < type->num_columns; k++) {
        const p_column *column = &type->columns[k];
        snprintf(name, sizeof name, "tables.%d", column->slot);
        if (column->kind > 0) type->tables[column->slot] = p_floats(r, name, column->kind, net->width);
    }
}

static void p_read_relative(p_reader *r, p_net *net, p_json options) {
    static const char global[] = "\"__global__\"";
    const p_json excluded = p_get(options, "exclude_entities"), frame = {global, global + sizeof global - 1};
    p_json items = p_items(p_get(options, "extent"), '['), item;
    double rows = 1, extent;
    int i, numbered = 0, width = net->width / net->heads;
    net->dims = p_dims_of(r, options, &net->rotates);
    net->axes = net->kind == 1 ? net->dims : net->kind == 4 ? 2 : 1;
    net->interpolates = p_true(p_get(options, "interpolate"));
    net->per_type = p_true(p_get(options, "per_entity_values"));
    net->scale = (float)fmin(p_number(p_get(options, "scale"), 1), FLT_MAX);
    net->gate_kind = p_word(r, p_get(options, "value_gate"), "relu none linear gelu sigmoid");
    for (i = 0; i < net->axes && p_next(&items, NULL, &item); i++) {
        if (!((extent = p_number(item, 0)) >= 1 && extent <= P_MOST)) break;
        rows *= net->sizes[i] = net->kind == 1 ? 2 * (int)extent + 1 : (int)extent;
    }
    if (i < net->axes || (net->kind % 2 == 0 && net->dims != 2) || !(net->scale > 0))
        p_fail(r->error, "config: extent, scale or position_features of net.relpos do not fit its kind");
    for (i = 0, items = p_items(r->trained->types, '['); i < net->num_types && !*r->error; i++) {
        int is_global = !p_next(&items, NULL, &item);
        int has = p_pose_of(r->trained, net, i, options, &net->types[i].related);
        int is_excluded = p_place(excluded, is_global ? frame : p_get(item, "name")) >= 0;
        if (!has && !is_global && !is_excluded)
            p_fail(r->error, "config: entity type %d lacks net.relpos.position_features", i);
        net->types[i].number = has && !is_excluded ? numbered++ : -1;
    }
    if (rows * (numbered + 1) > INT_MAX) p_fail(r->error, "config: the tables of net.relpos are too large");
    if (*r->error) return;
    p_at(r, "transformer.relative_positions.", 0);
    net->num_rows = (int)rows;
    net->keys = p_floats(r, "keys", net->num_rows, width);
    net->values = p_floats(r, "values", net->num_rows * (net->per_type ? numbered : 1), width);
    if (p_true(p_get(options, "key_projection"))) net->key_map = p_linear_of(r, "key_projection", width, net->dims + 1);
    if (p_true(p_get(options, "value_projection")))
        net->value_map = p_linear_of(r, "value_projection", width, net->dims + 1);
    if (net->key_map.weight || net->value_map.weight) net->norm = p_norm_of(r, net->dims + 1);
    if (net->gate_kind != P_NONE) net->gate = p_linear_of(r, "gate_projection", width, net->width);
}

static void p_read_net(p_reader *r, p_net *net, p_json config, const char *before) {
    const p_json translation = p_get(config, "translation"), relpos = p_get(config, "relpos");
    const p_json global_kinds = p_get(r->spaces, "global_kinds"), remembering = p_get(config, "memory_types");
    const p_json reference = p_get(translation, "reference_entity");
    const int memory = p_word(r, p_get(config, "memory"), "none entity frame both");
    p_json types = p_items(r->trained->types, '['), entity;
    int i, w = net->width = p_int(r, config, "d_model", 32, 1), is_entity;
    const float *number;
    r->net = before;
    net->layers = p_int(r, config, "n_layer", 2, 0);
    net->heads = p_int(r, config, "n_head", 2, 1);
    net->d_qk = p_int(r, config, "d_qk", 16, 1);
    net->pooling = p_word(r, p_get(config, "pooling"), "none mean max meanmax");
    net->kind = p_word(r, p_get(relpos, "kind"), "none grid radial distance polar");
    net->num_types = r->trained->num_types + r->trained->has_global;
    net->reference = -1;
    net->reference_name = reference.at && *reference.at == '"' ? reference : P_NOTHING;
    if (w % net->heads || w > 1 << 16 || net->d_qk > 1 << 16 || (net->kind && net->pooling))
        p_fail(r->error, "config: d_model, n_head, d_qk, pooling and relpos of a network do not fit together");
    if ((size_t)net->layers > r->num_tensors) p_fail(r->error, "config: n_layer %d: the file has fewer", net->layers);
    if (net->reference_name.at) p_dims_of(r, translation, &net->turns);
    net->types = (p_type *)p_alloc(r, net->num_types, sizeof *net->types);
    net->blocks = (p_block *)p_alloc(r, net->layers, sizeof *net->blocks);
    for (i = 0; i < net->num_types && !*r->error; i++) {
        p_type *type = &net->types[i];
        is_entity = p_next(&types, NULL, &entity);
        type->features = is_entity ? p_get(entity, "features") : r->trained->globals;
        type->num_own = type->num_given = type->num_columns = p_length(type->features);
        type->num_columns += is_entity ? r->trained->num_globals : 0;
        type->remembers = is_entity ? memory % 2 : memory > 1;
        if (is_entity && p_items(remembering, '[').at && p_place(remembering, p_get(entity, "name")) < 0)
            type->remembers = 0;
        if (is_entity && p_same(p_get(entity, "name"), net->reference_name)) net->reference = i;
    }
    if (net->reference < 0 && net->reference_name.at)
        p_fail(r->error, "config: translation.reference_entity is no entity type");
    for (i = 0; i < r->trained->num_types && net->reference >= 0 && !*r->error; i++) {
        p_type *type = &net->types[i];
        int has = p_pose_of(r->trained, net, i, translation, &type->moved);
        type->moves = has && i != net->reference;
        if (type->moves && p_true(p_get(translation, "add_distance"))) type->num_own++, type->num_columns++;
        if (i == net->reference && !has) p_fail(r->error, "config: the reference_entity lacks position_features");
    }
    for (types = p_items(r->trained->types, '['), i = 0; i < net->num_types && !*r->error; i++) {
        is_entity = p_next(&types, NULL, &entity);
        p_at(r, "embedding.entities.%d.", i);
        p_read_embedding(r, net, &net->types[i], is_entity ? p_get(entity, "kinds") : global_kinds, global_kinds);
        if (net->types[i].num_columns > net->most_columns) net->most_columns = net->types[i].num_columns;
    }
    if (net->kind && !*r->error) p_read_relative(r, net, relpos);
    for (i = 0; i < net->layers && !*r->error; i++) {
        p_block *block = &net->blocks[i];
        p_at(r, "transformer.blocks.%d.", i);
        block->before = p_linear_of(r, "attention_norm", w, -1);
        block->mix = net->pooling ? p_linear_of(r, "pool.prepare", w, w) : p_linear_of(r, "query_key_value", 3 * w, w);
        block->project = net->pooling ? p_linear_of(r, "pool.project", w, net->pooling == 3 ? 2 * w : w)
                                      : p_linear_of(r, "project", w, w);
        block->mlp = p_linear_of(r, "mlp.0", w, -1);
        block->up = p_linear_of(r, "mlp.1", 4 * w, w);
        block->down = p_linear_of(r, "mlp.3", w, 4 * w);
    }
    p_at(r, "transformer.memory.", 0);
    if ((net->remembers = memory > 0)) {
        net->first = p_floats(r, "first", net->num_types, w);
        net->norm_in = p_linear_of(r, "norm_in", w, -1);
        net->norm_out = p_linear_of(r, "norm_out", w, -1);
        net->gates = p_linear_of(r, "gates", 2 * w, w);
        net->out = p_linear_of(r, "out", w, w);
    }
    p_at(r, "value_head.", 0);
    net->value = p_linear_of(r, "project", 1, w);
    if ((number = p_floats(r, "mean", -1, -1))) net->mean = *number;
    if ((number = p_floats(r, "deviation", -1, -1))) net->deviation = *number;
}

/* ---- Reading actions */

static void p_read_bounds(p_reader *r, p_action *action, p_json space) {
    p_json lows = p_items(p_get(space, "low"), '['), highs = p_items(p_get(space, "high"), '['), low, high;
    int k;
    action->low = (float *)p_alloc(r, action->choices, 2 * sizeof *action->low);
    action->high = action->low + action->choices;
    for (k = 0; !*r->error && p_next(&lows, NULL, &low); k++) {
        double from = p_number(low, -HUGE_VAL), to = p_next(&highs, NULL, &high) ? p_number(high, HUGE_VAL) : NAN;
        int is_wrong = (from < -FLT_MAX && *low.at != 'n') || (to > FLT_MAX && *high.at != 'n');
        if (is_wrong || !(from < to) || from > FLT_MAX || to < -FLT_MAX)
            p_fail(r->error, "spaces: low and high of an action are no bounds");
        action->low[k] = from < -FLT_MAX ? -HUGE_VALF : (float)from;
        action->high[k] = to > FLT_MAX ? HUGE_VALF : (float)to;
    }
}

/* Reads what an action is, and the parts of its head that depend on nothing else. */
static void p_read_action(p_reader *r, p_action *action, int number, p_json space) {
    static const char kinds[] = "CategoricalActionSpace GlobalCategoricalActionSpace SelectEntityActionSpace "
                                "SelectEntitiesActionSpace ContinuousActionSpace";
    const p_net *net = &r->trained->nets[0];
    const p_json max = p_get(space, "max"), cost = p_get(space, "cost");
    const int w = net->width;
    int i;
    action->name = p_get(space, "name");
    action->kind = p_word(r, p_get(space, "type"), kinds);
    action->choices = p_length(p_get(space, action->kind == P_NUMBERS ? "low" : "choices"));
    action->nobody = action->kind == P_ENTITY && p_true(p_get(space, "nobody"));
    action->exclude_self = p_true(p_get(space, "exclude_self"));
    action->ordered = action->kind == P_SET && p_true(p_get(space, "ordered"));
    action->min = p_int(r, space, "min", 0, 0);
    action->max = max.at && *max.at != 'n' ? p_int(r, space, "max", 1, 1) : P_MOST;
    action->selection = -1;
    p_at(r, "heads.%d.", number);
    if (action->kind == P_ENTITY || action->kind == P_SET) {
        action->query = p_linear_of(r, "query", net->d_qk, w);
        action->key = p_linear_of(r, "key", net->d_qk, w);
    } else if (action->choices)
        action->project = p_linear_of(r, "project", action->choices, w);
    else
        p_fail(r->error, "spaces: action %d has no choices", number);
    if (action->nobody) action->nobody_key = p_floats(r, "nobody", 1, net->d_qk);
    if (action->kind == P_NUMBERS) {
        action->log_std = p_floats(r, "log_std", action->choices, -1);
        if (!*r->error) p_read_bounds(r, action, space);
    }
    if (!action->ordered) return;
    action->stop = p_floats(r, "stop", 1, net->d_qk);
    action->picked = p_linear_of(r, "picked", 3 * net->d_qk, w);
    if (!cost.at || *cost.at != '"') return;
    action->left = p_linear_of(r, "left", net->d_qk, 1);
    action->cost = (int *)p_alloc(r, net->num_types, 2 * sizeof *action->cost);
    action->budget = action->cost + net->num_types;
    for (i = 0; !*r->error && i < net->num_types; i++) {
        action->cost[i] = p_column_of(r->trained, net, i, cost);
        action->budget[i] = p_column_of(r->trained, net, i, p_get(space, "budget"));
    }
}

/* Reads a table of `allowed`: a flag for each choice of the earlier action and each own one. */
static unsigned char *p_read_table(p_reader *r, p_json rows, int num_rows, int num_columns) {
    unsigned char *table, *at;
    p_json row, item;
    if (p_length(rows) != num_rows) p_fail(r->error, "spaces: allowed needs a row for each earlier choice");
    table = at = (unsigned char *)p_alloc(r, num_rows, (size_t)num_columns);
    for (rows = p_items(rows, '['); !*r->error && p_next(&rows, NULL, &row);) {
        if (p_length(row) != num_columns) p_fail(r->error, "spaces: a row of allowed needs a flag for each choice");
        for (row = p_items(row, '['); !*r->error && p_next(&row, NULL, &item);) *at++ = (unsigned char)p_true(item);
    }
    return table;
}

/* Reads what an action is decided after; all actions are known. */
static void p_read_after(p_reader *r, p_action *action, p_json space) {
    const p_json after = p_get(space, "after"), allowed = p_get(space, "allowed");
    const int w = r->trained->nets[0].width;
    p_json items = p_items(after, '['), tables, item, name, table;
    int k, selections = 0;
    if (!p_length(after)) return;
    action->after = (int *)p_alloc(r, p_length(after), sizeof *action->after);
    action->allowed = (unsigned char **)p_alloc(r, p_length(after), sizeof *action->allowed);
    while (!*r->error && p_next(&items, NULL, &item)) {
        p_action *earlier = r->trained->actions;
        for (k = 0; k < r->trained->num_actions && !p_same(earlier->name, item); k++) earlier++;
        if (k == r->trained->num_actions && p_is(item, "actors")) {
            action->in_turn = action->is_told = 1;
            continue;
        }
        if (k == r->trained->num_actions || earlier == action) {
            p_fail(r->error, "spaces: after names no other action");
            return;
        }
        if (earlier->kind == P_ENTITY) selections++, action->selection = k;
        for (tables = p_items(allowed, '{'); p_next(&tables, &name, &table);)
            if (p_same(name, item) && action->kind <= P_GLOBAL && earlier->kind <= P_GLOBAL)
                action->allowed[action->num_after] = p_read_table(r, table, earlier->choices, action->choices);
        earlier->is_told = 1;
        action->after[action->num_after++] = k;
    }
    if (selections != 1) action->selection = -1;
    p_at(r, "heads.%d.", (int)(action - r->trained->actions));
    action->hidden = p_linear_of(r, "reader.hidden", w, 2 * w);
    action->reader = p_linear_of(r, "reader.project", w, w);
    if (action->in_turn && action->kind == P_ENTITY) action->taken = p_linear_of(r, "taken", 1, w);
}

/* Reads how later heads are told of an action, if there are any. */
static void p_read_told(p_reader *r, p_action *action, int number) {
    const int w = r->trained->nets[0].width;
    p_at(r, "heads.%d.", number);
    if (!action->is_told) return;
    if (action->kind <= P_GLOBAL) action->words = p_floats(r, "told.weight", action->choices, w);
    if (action->kind == P_NUMBERS) action->told = p_linear_of(r, "told", w, action->choices);
    if (!action->key.weight) return;
    action->told = p_linear_of(r, "told.selected", w, w);
    action->selecting = p_linear_of(r, "told.selecting", w, w);
}

/* Finds the order of decisions: each time the first action of which all earlier ones are placed. */
static void p_read_order(p_reader *r) {
    policy *trained = r->trained;
    int k, a, e, is_ready;
    trained->order = (int *)p_alloc(r, trained->num_actions, sizeof *trained->order);
    for (k = 0; !*r->error && k < trained->num_actions; k++) {
        for (a = 0, is_ready = 0; a < trained->num_actions && !is_ready; a++) {
            const p_action *action = &trained->actions[a];
            for (is_ready = !action->is_placed, e = 0; e < action->num_after; e++)
                is_ready &= trained->actions[action->after[e]].is_placed;
        }
        if (!is_ready) p_fail(r->error, "spaces: after makes a circle of actions");
        trained->order[k] = a - 1, trained->actions[a - 1].is_placed = 1;
    }
}

/* ---- Reading a file */

/* A text of the header without its escapes, which must be JSON itself. */
static p_json p_inner(p_reader *r, p_json metadata, const char *key) {
    p_json text = p_get(metadata, key), value = P_NOTHING;
    char *copy = text.at && *text.at == '"' ? (char *)p_alloc(r, (int)(text.end - text.at), 1) : NULL, *end = copy;
    const char *s;
    if (!copy) return p_fail(r->error, "the header has no %s", key), value;
    for (s = text.at + 1; s < text.end - 1; s++) { /* other escapes need no second one */
        if (*s == '\\' && *++s != '"' && *s != '\\' && *s != '/') p_fail(r->error, "%s has an unknown escape", key);
        *end++ = *s;
    }
    value.at = p_space(copy, end), value.end = p_skip(value.at, end, 0);
    if (value.end && p_space(value.end, end) == end) return value;
    return p_fail(r->error, "%s in the header is no JSON", key), P_NOTHING;
}

static void p_read_tensors(p_reader *r, p_json header, const unsigned char *content, double size) {
    p_json items = p_items(header, '{'), name, value, numbers, number, dtype;
    int count = 0;
    while (p_next(&items, &name, &value)) count++;
    r->tensors = (p_tensor *)p_alloc(r, count, sizeof *r->tensors);
    for (items = p_items(header, '{'); !*r->error && p_next(&items, &name, &value);) {
        p_tensor *tensor = &r->tensors[r->num_tensors];
        double from = -1, to = -1, bytes;
        if (p_is(name, "__metadata__")) continue;
        tensor->name = name.at + 1, tensor->length = (int32_t)(name.end - name.at) - 2;
        tensor->shape = p_get(value, "shape"), dtype = p_get(value, "dtype");
        tensor->type = p_is(dtype, "F32") ? 'F' : p_is(dtype, "F64") ? 'D' : p_is(dtype, "I64") ? 'I' : '?';
        numbers = p_items(p_get(value, "data_offsets"), '[');
        if (p_next(&numbers, NULL, &number)) from = p_number(number, -1);
        if (p_next(&numbers, NULL, &number)) to = p_number(number, -1);
        numbers = p_items(tensor->shape, '[');
        for (bytes = tensor->type == 'F' ? 4 : 8; p_next(&numbers, NULL, &number);) bytes *= p_number(number, NAN);
        if (!(from >= 0 && from == floor(from) && to >= from && to <= size) ||
            (tensor->type != '?' && bytes != to - from))
            p_fail(r->error, "shape, data_offsets or file do not fit in tensor %.*s", tensor->length, tensor->name);
        else
            tensor->data = content + (size_t)from, r->num_tensors++;
    }
    if (!*r->error) qsort(r->tensors, r->num_tensors, sizeof *r->tensors, p_by_name);
}

/* The 64 digits of a file's hash, which stand in it from `at` on, and count as zeros. */
static void p_hash(const unsigned char *data, size_t size, size_t at, char digits[65]) {
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    p_sha sha = {
        {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, 0, {0}};
    unsigned char tail[8];
    int k;
    p_sha_add(&sha, data, at), p_sha_add(&sha, zeros, 64), p_sha_add(&sha, data + at + 64, size - at - 64);
    for (k = 0; k < 8; k++) tail[k] = (unsigned char)((uint64_t)size * 8 >> (56 - 8 * k));
    for (p_sha_add(&sha, "\x80", 1); sha.bytes % 64 != 56;) p_sha_add(&sha, "", 1);
    p_sha_add(&sha, tail, 8);
    for (k = 0; k < 8; k++) snprintf(digits + 8 * k, 9, "%08lx", (unsigned long)sha.h[k]);
}

/* Checks the form of a file and its hash; returns the header, and its length. */
static p_json p_header(p_reader *r, const unsigned char *data, size_t size, uint64_t *length) {
    p_json header = P_NOTHING, format, hash;
    const char *from = (const char *)data + 8, *to;
    const int one = 1;
    char digits[65];
    int k;
    if (*(const char *)&one != 1) p_fail(r->error, "this machine is big-endian, and files are little-endian");
    if ((size_t)data % 8) p_fail(r->error, "the file must begin at a multiple of 8 bytes in memory");
    for (k = 7, *length = 0; k >= 0 && size >= 8; k--) *length = *length << 8 | data[k];
    if (!*length || *length > P_MOST || *length > size - 8)
        p_fail(r->error, "the length of the header: this is no safetensors file, or it is cut short");
    if (*r->error) return header;
    to = from + *length, header.at = p_space(from, to), header.end = p_skip(header.at, to, 0);
    if (!header.end || *header.at != '{' || p_space(header.end, to) < to)
        return p_fail(r->error, "the header is no JSON"), header;
    format = p_get(p_get(header, "__metadata__"), "format"), hash = p_get(p_get(header, "__metadata__"), "hash");
    if (!p_is(format, "8"))
        p_fail(r->error, "this version reads format 8, not format %.*s",
               format.at ? (int)(format.end - format.at) : 4, format.at ? format.at : "none");
    if (!hash.at || hash.end - hash.at != 66) p_fail(r->error, "the header has no hash");
    if (*r->error) return header;
    p_hash(data, size, (size_t)((const unsigned char *)hash.at + 1 - data), digits);
    if (memcmp(digits, hash.at + 1, 64)) p_fail(r->error, "the hash does not fit the content: the file is damaged");
    return header;
}

static void p_read_all(p_reader *r, const unsigned char *data, size_t size) {
    policy *trained = r->trained;
    uint64_t length;
    p_json header = p_header(r, data, size, &length), metadata, items, item, config;
    size_t i;
    int k;
    if (*r->error) return;
    metadata = p_get(header, "__metadata__");
    r->spaces = p_inner(r, metadata, "spaces"), config = p_inner(r, metadata, "config");
    p_read_tensors(r, header, data + 8 + length, (double)(size - 8 - (size_t)length));
    trained->spaces = r->spaces.at;
    trained->types = p_get(r->spaces, "entities"), trained->globals = p_get(r->spaces, "global_features");
    trained->named_actions = p_get(r->spaces, "actions"), trained->num_actions = p_length(trained->named_actions);
    trained->num_types = p_length(trained->types), trained->num_globals = p_length(trained->globals);
    if (!trained->num_actions) p_fail(r->error, "spaces: there are no actions");
    trained->has_global = trained->num_globals > 0;
    for (items = p_items(trained->named_actions, '['); p_next(&items, NULL, &item);)
        trained->has_global |= p_is(p_get(item, "type"), "GlobalCategoricalActionSpace");
    if (!*r->error) p_read_net(r, &trained->nets[0], p_get(config, "net"), "");
    item = p_get(config, "value_net");
    if (!*r->error && p_items(item, '{').at) p_read_net(r, &trained->nets[1], item, "value_net/");
    r->net = "";
    trained->actions = (p_action *)p_alloc(r, trained->num_actions, sizeof *trained->actions);
    for (items = p_items(trained->named_actions, '['), k = 0; !*r->error && p_next(&items, NULL, &item); k++)
        p_read_action(r, &trained->actions[k], k, item);
    for (items = p_items(trained->named_actions, '['), k = 0; !*r->error && p_next(&items, NULL, &item); k++)
        p_read_after(r, &trained->actions[k], item);
    for (k = 0; !*r->error && k < trained->num_actions; k++) p_read_told(r, &trained->actions[k], k);
    p_read_order(r);
    for (i = 0; !*r->error && i < r->num_tensors; i++) { /* an unknown part could change what the others mean */
        const p_tensor *t = &r->tensors[i];
        const char *name = strncmp(t->name, "value_net/", 10) ? t->name : t->name + 10;
        if (!t->is_known && strncmp(name, "trainer/", 8) && strncmp(name, "regression_heads.", 17) &&
            (name == t->name || strncmp(name, "heads.", 6)))
            p_fail(r->error, "this version does not know the tensor %.*s", t->length, t->name);
    }
}

policy *policy_read(const void *data, size_t size, char error[POLICY_ERROR]) {
    p_reader r = {NULL, error, NULL, 0, 0, NULL, {NULL, NULL}, "", ""};
    *error = 0, r.left = size > 8192 ? size : 8192;
    if (size > SIZE_MAX / 2 || !(r.room = (char *)POLICY_MALLOC(r.left))) {
        p_fail(error, "no memory for the policy");
        return NULL;
    }
    r.trained = (policy *)p_alloc(&r, 1, sizeof *r.trained);
    p_read_all(&r, (const unsigned char *)data, size);
    if (!*error) return r.trained;
    POLICY_FREE(r.trained);
    return NULL;
}

void policy_free(policy *trained) { POLICY_FREE(trained); }

const char *policy_spaces(const policy *trained) { return trained->spaces; }

static int p_find(p_json named, const char *name) {
    p_json items = p_items(named, '['), item;
    int place;
    for (place = 0; p_next(&items, NULL, &item); place++)
        if (p_is(p_get(item, "name"), name)) return place;
    return -1;
}

int policy_find_type(const policy *trained, const char *name) { return p_find(trained->types, name); }

int policy_find_action(const policy *trained, const char *name) { return p_find(trained->named_actions, name); }
#endif
